// Norms of one row, in float32.
#pragma once
#include <cmath>

#include "vec.h"

// RMSNorm, or LayerNorm without a bias if `centred`. A null weight: no norm at all.
struct Norm {
  const float* weight;
  long centred;
  float eps;
};

namespace {

// What brings a row of n numbers to a mean square of 1: `total` are the sums of their squares, lane by lane.
INLINE float norm_scale(F16 total, long n, float eps) { return 1.f / std::sqrt(sum(total) / n + eps); }

// out [n] = RMSNorm(x [n]) * weight [n]; out may be x.
inline void normalise(const float* x, const float* weight, float* out, long n, float eps) {
  F16 total = {};
  long i = 0;
  for (; i + LANES <= n; i += LANES) total += load(x + i) * load(x + i);
  if (i < n) total += load_some(x + i, n - i) * load_some(x + i, n - i);
  const F16 scale = splat(norm_scale(total, n, eps));
  for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < n) store_some(out + i, load_some(x + i, n - i) * scale * load_some(weight + i, n - i), n - i);
}

// out [n] = x [n] without its mean; out may be x.
inline void centre(const float* x, float* out, long n) {
  F16 total = {};
  long i = 0;
  for (; i + LANES <= n; i += LANES) total += load(x + i);
  if (i < n) total += load_some(x + i, n - i);
  const F16 mean = splat(sum(total) / n);
  for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) - mean);
  if (i < n) store_some(out + i, load_some(x + i, n - i) - mean, n - i);
}

// out [n] = norm(x [n]), whose weight is not null; out may be x.
inline void normalise(const float* x, const Norm& norm, float* out, long n) {
  if (norm.centred) centre(x, out, n), x = out;
  normalise(x, norm.weight, out, n, norm.eps);
}

// states [n] += scale * norm(delta [n]); delta may change.
inline void add_delta(float* states, float* delta, const Norm& norm, float scale, long n) {
  if (norm.weight) normalise(delta, norm, delta, n);
  for (long i = 0; i < n; i++) states[i] += scale * delta[i];
}

}  // namespace
