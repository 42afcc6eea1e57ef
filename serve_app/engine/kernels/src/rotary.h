// The heads of q, k and v after their product: norms, rotary positions, and where keys and values go.
#pragma once
#include "cache.h"
#include "codes.h"
#include "linear.h"
#include "normalise.h"

// Rows of heads [rows, heads + 2 kv_heads, dim], and what `rope_and_cache` in exports.h does with them.
struct Heads {
  float* qkv;
  const float *cos, *sin, *q_norm, *k_norm;
  float eps;
  const Cache& cache;
  const int64_t* slots;
  long heads, whole;
  long width, keys;  // floats of a row, and those before its keys: there may be more than those of q

  long dim() const { return cache.key_dim; }
};

// Does so with rows that `qkv` holds already.
void turn_heads(const Heads& heads, long rows, int threads);

// Computes the rows by `linear` and does so while they are in registers. Then `qkv` gets the heads of q alone. False,
// and nothing is done, for a product that cannot do so.
bool project_heads(const Linear& linear, const float* inputs, const Heads& heads, long rows, int threads);

namespace {

// The rotary factors of a row, for heads of 2 V vectors.
template <int V>
struct Factors {
  F16 cos[V], sin[V];

  Factors(const Heads& h, long row) {
    const long at = row * V * LANES;
    for (int i = 0; i < V; i++) cos[i] = load(h.cos + at + i * LANES), sin[i] = load(h.sin + at + i * LANES);
  }
};

// A head of 2 V vectors.
template <int V>
struct Head {
  F16 low[V], high[V];

  // Normalises the head, unless `weight` is null, and rotates the pairs of its lower and its upper half.
  __attribute__((always_inline)) void turn(const float* weight, float eps, const Factors<V>& factors) {
    if (weight) {
      F16 total = {};
      for (int i = 0; i < V; i++) total += low[i] * low[i];
      for (int i = 0; i < V; i++) total += high[i] * high[i];
      const F16 scale = splat(norm_scale(total, 2 * V * LANES, eps));
      for (int i = 0; i < V; i++) {
        low[i] = low[i] * scale * load(weight + i * LANES);
        high[i] = high[i] * scale * load(weight + (V + i) * LANES);
      }
    }
    for (int i = 0; i < V; i++) {
      const F16 a = low[i], b = high[i];
      low[i] = a * factors.cos[i] - b * factors.sin[i];
      high[i] = b * factors.cos[i] + a * factors.sin[i];
    }
  }

  template <class T>
  __attribute__((always_inline)) void put(T* to) const {
    for (int i = 0; i < V; i++) store(to + i * LANES, low[i]), store(to + (V + i) * LANES, high[i]);
  }

  // Writes what a cache keeps of the head. `scale`: the place of its scale, if it has one.
  template <class T>
  __attribute__((always_inline)) void keep(T* to, float*) const {
    put(to);
  }
  __attribute__((always_inline)) void keep(int8_t* to, float* scale) const {
    Peaks peaks;
    for (int i = 0; i < V; i++) peaks.take(low[i]), peaks.take(high[i]);
    const Codes codes(peaks.highest());
    for (int i = 0; i < V; i++) store(to + i * LANES, codes.of(low[i])), store(to + (V + i) * LANES, codes.of(high[i]));
    *scale = codes.scale;
  }
};

}  // namespace
