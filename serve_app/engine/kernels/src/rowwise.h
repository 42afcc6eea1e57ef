// The work between matrix products; see rowwise.cpp.
#pragma once
#include "cache.h"

INLINE F16 gate_times_up(F16 gate, F16 up, bool gelu) {
  const F16 inner = gelu ? 1.5957691216f * (gate + 0.044715f * gate * gate * gate) : gate;
  return gate * sigmoid(inner) * up;
}

extern "C" {
void add_rmsnorm(float* residual, const float* delta, const float* weight, float* out, long t, long n, float eps,
                 int threads);
void rope_and_cache(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                    float eps, const Cache* cache, const int64_t* slots, long t, long heads, int threads);
}
