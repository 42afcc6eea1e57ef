// The work between matrix products, in float32: norms and gated activations. Every function treats each row alone.
#include "rowwise.h"

#include <algorithm>

#include "exports.h"
#include "panels.h"

namespace {

void norm_row(const float* x, const Norm& norm, float* out, long n) {
  if (norm.weight)
    normalise(x, norm, out, n);
  else
    std::copy(x, x + n, out);
}

}  // namespace

void find_largest(const float* x, long n, float* value, int64_t* place) {
  const long whole = n / LANES * LANES;
  F16 best = splat(-__builtin_inff());
  I16 unordered = {};
  for (long i = 0; i < whole; i += LANES) {
    const F16 v = load(x + i);
    best = max(best, v);
    unordered |= v != v;
  }
  float top = max(best);
  bool nan = false;
  for (long i = 0; i < LANES; i++) nan |= unordered[i] != 0;
  for (long i = whole; i < n; i++) {
    top = std::max(top, x[i]);
    nan |= x[i] != x[i];
  }
  long i = 0;
  if (nan)
    while (x[i] == x[i]) i++;
  else
    while (x[i] != top) i++;
  *value = x[i], *place = i;
}

void highest(const float* x, float* values, int64_t* places, long t, long n, int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) find_largest(x + row * n, n, values + row, places + row);
  });
}

void add_norm(float* residual, float* delta, const Norm* after, float scale, const Norm* before, float* out, long t,
              long n, int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      float* r = residual + row * n;
      if (delta) add_delta(r, delta + row * n, *after, scale, n);
      norm_row(r, *before, out + row * n, n);
    }
  });
}

void norm_rows(const float* x, const Norm& norm, float* out, long rows, long n, int threads) {
  parallel_rows(rows, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) norm_row(x + row * n, norm, out + row * n, n);
  });
}

void norm_inputs(const float* x, const Norm& norm, const Linear& linear, float* inputs, long rows, int threads) {
  const long n = linear.inputs;
  parallel_rows(rows, n, threads, [&](long first, long last) {
    float* const normed = own_outputs(n);
    for (long row = first; row < last; row++) {
      if (norm.weight) normalise(x + row * n, norm, normed, n);
      put_row(linear, norm.weight ? normed : x + row * n, inputs, row);
    }
  });
}

void gated(const float* gate_up, float* out, long t, long n, int gelu, int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      const float *gate = gate_up + row * 2 * n, *up = gate + n;
      float* y = out + row * n;
      long i = 0;
      for (; i + LANES <= n; i += LANES) store(y + i, gate_times_up(load(gate + i), load(up + i), gelu));
      if (i < n)
        store_some(y + i, gate_times_up(load_some(gate + i, n - i), load_some(up + i, n - i), gelu), n - i);
    }
  });
}

void gate_heads(float* heads, const float* gates, long t, long n, long apart, int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      float* const x = heads + row * n;
      const float* const gate = gates + row * apart;
      long i = 0;
      for (; i + LANES <= n; i += LANES) store(x + i, load(x + i) * sigmoid(load(gate + i)));
      if (i < n) store_some(x + i, load_some(x + i, n - i) * sigmoid(load_some(gate + i, n - i)), n - i);
    }
  });
}

void widen(const bf16* x, float* out, long n, int threads) {
  parallel_rows(n, 1, threads, [&](long first, long last) {
    for (long i = first; i < last; i++) out[i] = to_float(x[i]);
  });
}
