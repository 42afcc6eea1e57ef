// The work between matrix products, in float32: norms, rotary positions, gated activations, and the writing of keys and
// values to the cache. Every function treats each row alone.
#include "rowwise.h"

#include <algorithm>
#include <cmath>

#include "exports.h"
#include "panels.h"

namespace {

float mean_square(const float* x, long n) {
  F16 total = {};
  long i = 0;
  for (; i + LANES <= n; i += LANES) total += load(x + i) * load(x + i);
  if (i < n) total += load_some(x + i, n - i) * load_some(x + i, n - i);
  return sum(total) / n;
}

// out [n] = RMSNorm(x [n]) * weight [n]; out may be x.
void normalise(const float* x, const float* weight, float* out, long n, float eps) {
  const float scale = 1.f / std::sqrt(mean_square(x, n) + eps);
  for (long i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

// Rotates the pairs (x[i], x[i + half]) of a head in place by cos and sin [half].
void rotate(float* x, const float* cos, const float* sin, long half) {
  long i = 0;
  for (; i + LANES <= half; i += LANES) {
    const F16 a = load(x + i), b = load(x + i + half), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(x + i + half, b * c + a * s);
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// Writes key [dim] to column `offset` of block [dim, size]. It rounds sixteen numbers at a time, as one number costs as
// much to round as a vector.
template <class T>
void write_key(T* block, const float* key, long dim, long size, long offset) {
  T* at = block + offset;
  for (long d = 0; d < dim; d += LANES, at += LANES * size) {
    const long some = std::min(LANES, dim - d);
    T lanes[LANES];
    store(lanes, some == LANES ? load(key + d) : load_some(key + d, some));
    for (long i = 0; i < some; i++) at[i * size] = lanes[i];
  }
}

// Writes value [dim] to row `offset` of block [size, padded].
template <class T>
void write_value(T* block, const float* value, long dim, long padded, long offset) {
  T* row = block + offset * padded;
  long d = 0;
  for (; d + LANES <= dim; d += LANES) store(row + d, load(value + d));
  if (d < dim) store_some(row + d, load_some(value + d, dim - d), dim - d);
}

// Writes a token's keys and values to `slot` of the cache. Its heads are key_head and value_head floats apart.
template <class T>
void write_token(const Cache& cache, const float* key, long key_head, const float* value, long value_head,
                 long slot) {
  const long block = slot / cache.block_size, offset = slot % cache.block_size;
  for (long h = 0; h < cache.kv_heads; h++) {
    write_key(cache.key_block<T>(block, h), key + h * key_head, cache.key_dim, cache.block_size, offset);
    write_value(cache.value_block<T>(block, h), value + h * value_head, cache.value_dim, cache.value_pad,
                offset);
  }
}

// *value is the largest number of x [n], and *place the first place that has it. If x has a NaN, they are the first NaN
// and its place.
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

}  // namespace

void highest(const float* x, float* values, int64_t* places, long t, long n, int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) find_largest(x + row * n, n, values + row, places + row);
  });
}

void add_rmsnorm(float* residual, const float* delta, const float* weight, float* out, long t, long n, float eps,
                 int threads) {
  parallel_rows(t, n, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      float* r = residual + row * n;
      if (delta)
        for (long i = 0; i < n; i++) r[i] += delta[row * n + i];
      normalise(r, weight, out + row * n, n, eps);
    }
  });
}

void norm_inputs(const float* x, const float* weight, float eps, const Linear& linear, float* inputs, long rows,
                 int threads) {
  const long n = linear.inputs;
  parallel_rows(rows, n, threads, [&](long first, long last) {
    float* const normed = own_outputs(n);
    for (long row = first; row < last; row++) {
      normalise(x + row * n, weight, normed, n, eps);
      put_row(linear, normed, inputs, row);
    }
  });
}

void rope_and_cache(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                    float eps, const Cache* cache, const int64_t* slots, long t, long heads, int threads) {
  const long dim = cache->key_dim, kv = cache->kv_heads, half = dim / 2;
  // Ranges are few, because neighbouring tokens write to the same cache lines: keys of a block lie side by side.
  const long ranges = std::clamp(t / 8, 1L, 2L * threads);
  parallel(ranges, threads, [&](long range) {
    const long first = t * range / ranges, last = t * (range + 1) / ranges;
    for (long row = first; row < last; row++) {
      float* q = qkv + row * (heads + 2 * kv) * dim;
      for (long h = 0; h < heads + kv; h++) {
        const float* norm = h < heads ? q_norm : k_norm;
        if (norm) normalise(q + h * dim, norm, q + h * dim, dim, eps);
        rotate(q + h * dim, cos + row * half, sin + row * half, half);
      }
      const float *k = q + heads * dim, *v = k + kv * dim;
      if (cache->wide)
        write_token<float>(*cache, k, dim, v, dim, slots[row]);
      else
        write_token<bf16>(*cache, k, dim, v, dim, slots[row]);
    }
  });
}

void write_cache(const float* key, const float* value, const Cache* cache, const int64_t* slots, long t,
                 int threads) {
  const long key_row = cache->kv_heads * cache->key_dim, value_row = cache->kv_heads * cache->value_dim;
  parallel_rows(t, key_row, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      const float *k = key + row * key_row, *v = value + row * value_row;
      if (cache->wide)
        write_token<float>(*cache, k, cache->key_dim, v, cache->value_dim, slots[row]);
      else
        write_token<bf16>(*cache, k, cache->key_dim, v, cache->value_dim, slots[row]);
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

void widen(const bf16* x, float* out, long n, int threads) {
  parallel_rows(n, 1, threads, [&](long first, long last) {
    for (long i = first; i < last; i++) out[i] = to_float(x[i]);
  });
}
