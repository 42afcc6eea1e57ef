// The work between matrix products, and the activation of a gated MLP on vectors.
#pragma once
#include <cstdint>

#include "linear.h"
#include "normalise.h"
#include "vec.h"

// act(gate) * up, where act is GELU in its tanh form if `gelu`, else SiLU.
INLINE F16 gate_times_up(F16 gate, F16 up, bool gelu) {
  const F16 inner = gelu ? 1.5957691216f * (gate + 0.044715f * gate * gate * gate) : gate;
  return gate * sigmoid(inner) * up;
}

// *value is the largest number of x [n], and *place the first place that has it. If x has a NaN, they are the first NaN
// and its place.
void find_largest(const float* x, long n, float* value, int64_t* place);

// out [rows, n] = norm(x [rows, n]), or x.
void norm_rows(const float* x, const Norm& norm, float* out, long rows, long n, int threads);

// norm(x [rows, n]), or x, as inputs of `linear`, which has n inputs.
void norm_inputs(const float* x, const Norm& norm, const Linear& linear, float* inputs, long rows, int threads);
