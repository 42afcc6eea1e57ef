// RMSNorm of one row, in float32.
#pragma once
#include <cmath>

#include "vec.h"

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

}  // namespace
