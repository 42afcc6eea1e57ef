// Rotary positions, and the writing of keys and values to the cache. Every row is treated alone, but keys of
// neighbouring positions are written together: in a block they lie side by side.
#include "rotary.h"

#include <algorithm>

#include "cache_rows.h"
#include "exports.h"
#include "panels.h"

namespace {

// Normalises and rotates the head x of a row, and keeps it at `to`, which may be x. `scale`: as of Head::keep.
template <int V, class T>
INLINE void turn_head(const Heads& h, float* x, const float* weight, long row, T* to, float* scale) {
  Head<V> head;
  for (int i = 0; i < V; i++) head.low[i] = load(x + i * LANES), head.high[i] = load(x + (V + i) * LANES);
  head.turn(weight, h.eps, Factors<V>(h, row));
  head.keep(to, scale);
}

// The same for heads of any even number of features. It changes x.
template <class T>
void turn_any_head(const Heads& h, float* x, const float* weight, long row, T* to, float* scale) {
  const long half = h.dim() / 2;
  if (weight) normalise(x, weight, x, 2 * half, h.eps);
  for (long i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half], c = h.cos[row * half + i], s = h.sin[row * half + i];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
  keep_row(x, to, 2 * half, scale);
}

// Rows [first, last), with a cache of T. V: half the vectors of a head, or 0 for heads of any size.
template <int V, class T>
void turn_rows(const Heads& h, long first, long last) {
  const Cache& cache = h.cache;
  const long dim = h.dim(), kv = cache.kv_heads, width = h.width;
  const auto turn = [&h](float* x, const float* weight, long row, auto* to, float* scale) {
    if constexpr (V > 0)
      turn_head<V>(h, x, weight, row, to, scale);
    else
      turn_any_head(h, x, weight, row, to, scale);
  };
  T* const keys = (T*)own_outputs(LANES * dim);
  // Fetches the column of a key, to be written: few of its words lie in the same cache line.
  const long line = std::max(TOGETHER<T>, 64 / cache.element / cache.block_size);  // its features
  const auto fetch = [&](long block, long head, long offset) __attribute__((always_inline)) {
    const T* const to = cache.key_block<T>(block, head) + offset * TOGETHER<T>;
    for (long d = 0; d < dim; d += line) __builtin_prefetch(to + d * cache.block_size, 1, 3);
  };
  slot_runs(h.slots, first, last, [&](long from, long count) {
    const long block = h.slots[from] / cache.block_size, offset = h.slots[from] % cache.block_size;
    fetch(block, 0, offset);
    for (long row = from; row < from + count; row++)
      for (float *q = h.qkv + row * width, *end = q + h.heads * dim; q < end; q += dim)
        turn(q, h.q_norm, row, q, nullptr);
    for (long head = 0; head < kv; head++) {
      if (head + 1 < kv) fetch(block, head + 1, offset);
      float* const k = h.qkv + from * width + h.keys + head * dim;
      float* const key_scales = cache.key_scales<T>(block, head) + offset;
      for (long i = 0; i < count; i++) turn(k + i * width, h.k_norm, from + i, keys + i * dim, key_scales + i);
      write_columns(keys, dim, count, cache.key_block<T>(block, head) + offset * TOGETHER<T>, cache.block_size);
      T* const values = cache.value_block<T>(block, head) + offset * cache.value_pad;
      float* const value_scales = cache.value_scales<T>(block, head) + offset;
      for (long i = 0; i < count; i++)
        keep_row(k + i * width + kv * dim, values + i * cache.value_pad, dim, value_scales + i);
    }
  });
}

template <class T>
void turn_rows(const Heads& h, long first, long last) {
  switch (h.dim()) {
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
      float* const key_scales = cache.key_scales<T>(block, head) + offset;
      for (long i = 0; i < count; i++)
        keep_row(key + ((from + i) * kv + head) * key_dim, keys + i * key_dim, key_dim, key_scales + i);
      write_columns(keys, key_dim, count, cache.key_block<T>(block, head) + offset * TOGETHER<T>, cache.block_size);
      if (cache.latent()) continue;
      T* const values = cache.value_block<T>(block, head) + offset * cache.value_pad;
      float* const value_scales = cache.value_scales<T>(block, head) + offset;
      for (long i = 0; i < count; i++)
        keep_row(value + ((from + i) * kv + head) * value_dim, values + i * cache.value_pad, value_dim,
                 value_scales + i);
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

void turn_heads(const Heads& heads, long rows, int threads) {
  Heads turned = heads;
  if (heads.whole) turned.q_norm = turned.k_norm = nullptr;
  const long q = heads.heads * heads.dim(), k = heads.cache.kv_heads * heads.dim();
  parallel_runs(rows, threads, [&](long first, long last) {
    if (heads.whole)
      for (long row = first; row < last; row++) {
        float* const x = heads.qkv + row * heads.width;
        normalise(x, heads.q_norm, x, q, heads.eps);
        normalise(x + heads.keys, heads.k_norm, x + heads.keys, k, heads.eps);
      }
    with_type(heads.cache, [&](auto kept) { turn_rows<decltype(kept)>(turned, first, last); });
  });
}

void rope_and_cache(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                    float eps, const Cache* cache, const int64_t* slots, long t, long heads, long whole, int threads) {
  const long width = (heads + 2 * cache->kv_heads) * cache->key_dim;
  turn_heads({qkv, cos, sin, q_norm, k_norm, eps, *cache, slots, heads, whole, width, heads * cache->key_dim}, t, threads);
}

void write_cache(const float* key, const float* value, const Cache* cache, const int64_t* slots, long t, int threads) {
  parallel_runs(t, threads, [&](long first, long last) {
    with_type(*cache, [&](auto kept) { write_rows<decltype(kept)>(key, value, *cache, slots, first, last); });
  });
}
