// Rotary positions, and the writing of keys and values to the cache. Every row is treated alone, but keys of
// neighbouring positions are written together: in a block they lie side by side.
#include <algorithm>

#include "cache_rows.h"
#include "exports.h"
#include "normalise.h"
#include "panels.h"

namespace {

// The rotary factors of a row, for heads of 2 V vectors.
template <int V>
struct Factors {
  F16 cos[V], sin[V];

  Factors(const float* cos_at, const float* sin_at, long) {
    for (int i = 0; i < V; i++) cos[i] = load(cos_at + i * LANES), sin[i] = load(sin_at + i * LANES);
  }
};

// The same for heads of any even number of features.
template <>
struct Factors<0> {
  const float *cos, *sin;
  long half;

  Factors(const float* cos, const float* sin, long half) : cos(cos), sin(sin), half(half) {}
};

// Normalises the head x, unless `weight` is null, rotates the pairs (x[i], x[i + half]), and rounds the head to `to`,
// which may be x.
template <int V, class T>
INLINE void turn_head(float* x, const float* weight, float eps, const Factors<V>& factors, T* to) {
  constexpr long HALF = V * LANES;
  F16 low[V], high[V];
  for (int i = 0; i < V; i++) low[i] = load(x + i * LANES), high[i] = load(x + HALF + i * LANES);
  if (weight) {
    F16 total = {};
    for (int i = 0; i < V; i++) total += low[i] * low[i];
    for (int i = 0; i < V; i++) total += high[i] * high[i];
    const F16 scale = splat(norm_scale(total, 2 * HALF, eps));
    for (int i = 0; i < V; i++) {
      low[i] = low[i] * scale * load(weight + i * LANES);
      high[i] = high[i] * scale * load(weight + HALF + i * LANES);
    }
  }
  for (int i = 0; i < V; i++) {
    store(to + i * LANES, low[i] * factors.cos[i] - high[i] * factors.sin[i]);
    store(to + HALF + i * LANES, high[i] * factors.cos[i] + low[i] * factors.sin[i]);
  }
}

// The same for heads of any even number of features. It changes x.
template <class T>
void turn_head(float* x, const float* weight, float eps, const Factors<0>& factors, T* to) {
  const long half = factors.half;
  if (weight) normalise(x, weight, x, 2 * half, eps);
  for (long i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half], c = factors.cos[i], s = factors.sin[i];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
  round_to(x, to, 2 * half);
}

// The arguments of `rope_and_cache`.
struct Heads {
  float* qkv;
  const float *cos, *sin, *q_norm, *k_norm;
  float eps;
  const Cache& cache;
  const int64_t* slots;
  long heads;
};

// Rows [first, last), with a cache of T and heads of 2 V vectors; of any size if V is 0.
template <int V, class T>
void turn_rows(const Heads& h, long first, long last) {
  const Cache& cache = h.cache;
  const long dim = cache.key_dim, kv = cache.kv_heads, half = dim / 2, width = (h.heads + 2 * kv) * dim;
  const auto factors = [&](long row) { return Factors<V>(h.cos + row * half, h.sin + row * half, half); };
  T* const keys = (T*)own_outputs(LANES * dim);
  slot_runs(h.slots, first, last, [&](long from, long count) {
    const long block = h.slots[from] / cache.block_size, offset = h.slots[from] % cache.block_size;
    for (long row = from; row < from + count; row++) {
      float* const q = h.qkv + row * width;
      const auto turn = factors(row);
      for (long head = 0; head < h.heads; head++)
        turn_head(q + head * dim, h.q_norm, h.eps, turn, q + head * dim);
    }
    for (long head = 0; head < kv; head++) {
      float* const k = h.qkv + from * width + (h.heads + head) * dim;
      for (long i = 0; i < count; i++) turn_head(k + i * width, h.k_norm, h.eps, factors(from + i), keys + i * dim);
      write_columns(keys, dim, count, cache.key_block<T>(block, head) + offset, cache.block_size);
      T* const values = cache.value_block<T>(block, head) + offset * cache.value_pad;
      for (long i = 0; i < count; i++) round_to(k + i * width + kv * dim, values + i * cache.value_pad, dim);
    }
  });
}

template <class T>
void turn_rows(const Heads& h, long first, long last) {
  switch (h.cache.key_dim) {
    case 32: return turn_rows<1, T>(h, first, last);
    case 64: return turn_rows<2, T>(h, first, last);
    case 96: return turn_rows<3, T>(h, first, last);
    case 128: return turn_rows<4, T>(h, first, last);
    default: return turn_rows<0, T>(h, first, last);
  }
}

// Writes keys and values of rows [first, last) to a cache of T.
template <class T>
void write_rows(const float* key, const float* value, const Cache& cache, const int64_t* slots, long first, long last) {
  const long key_dim = cache.key_dim, value_dim = cache.value_dim, kv = cache.kv_heads;
  T* const keys = (T*)own_outputs(LANES * key_dim);
  slot_runs(slots, first, last, [&](long from, long count) {
    const long block = slots[from] / cache.block_size, offset = slots[from] % cache.block_size;
    for (long head = 0; head < kv; head++) {
      for (long i = 0; i < count; i++) round_to(key + ((from + i) * kv + head) * key_dim, keys + i * key_dim, key_dim);
      write_columns(keys, key_dim, count, cache.key_block<T>(block, head) + offset, cache.block_size);
      T* const values = cache.value_block<T>(block, head) + offset * cache.value_pad;
      for (long i = 0; i < count; i++)
        round_to(value + ((from + i) * kv + head) * value_dim, values + i * cache.value_pad, value_dim);
    }
  });
}

// Calls task(first, last) for few ranges of rows, because neighbouring rows write to the same cache lines. Ranges of many
// rows begin at a multiple of sixteen.
template <class F>
void parallel_runs(long rows, int threads, F&& task) {
  const long ranges = std::clamp(rows / 8, 1L, 2L * threads), unit = rows < LANES * ranges ? 1 : LANES;
  const long units = (rows + unit - 1) / unit;
  parallel(ranges, threads, [&](long i) {
    task(units * i / ranges * unit, std::min(rows, units * (i + 1) / ranges * unit));
  });
}

}  // namespace

void rope_and_cache(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                    float eps, const Cache* cache, const int64_t* slots, long t, long heads, int threads) {
  const Heads all{qkv, cos, sin, q_norm, k_norm, eps, *cache, slots, heads};
  parallel_runs(t, threads, [&](long first, long last) {
    cache->wide ? turn_rows<float>(all, first, last) : turn_rows<bf16>(all, first, last);
  });
}

void write_cache(const float* key, const float* value, const Cache* cache, const int64_t* slots, long t, int threads) {
  parallel_runs(t, threads, [&](long first, long last) {
    cache->wide ? write_rows<float>(key, value, *cache, slots, first, last)
                : write_rows<bf16>(key, value, *cache, slots, first, last);
  });
}
