// Scores and weighted sums of a few rows on vector registers, read from the cache in place. They are summed in the way in
// which attention sums those of many rows, so a row gets the same bits here as there, except for subnormals, which
// tiles take for 0.
#pragma once
#include <type_traits>

#include "attention_products.h"
#include "attention_softmax.h"

namespace {

// Fetches one block into the second-level cache while another block of the same size is read. The fetched address is
// `distance` bytes from the read one. The distance is a number, as blocks of two caches are parts of no common array.
struct Ahead {
  uintptr_t distance;

  INLINE_MEMBER void fetch(const void* read) const { __builtin_prefetch((const void*)((uintptr_t)read + distance), 0, 2); }
};

// The fetching of `next` while `now` is read; null: `now` itself, which fetches nothing new.
inline Ahead ahead(const void* now, const void* next) { return {next ? (uintptr_t)next - (uintptr_t)now : 0}; }

// Fetches what `after` has for NP vectors of keys at two neighbouring features.
template <int NP, class T>
INLINE void fetch_features(Ahead after, const T* keys, long size) {
#pragma GCC unroll 2
  for (int j = 0; j < NP; j++) {
    after.fetch(keys + j * TOGETHER<T> * LANES);
    if (TOGETHER<T> == 1) after.fetch(keys + size + j * LANES);
  }
}

// Of codes, 64 keys at one feature are a line, or 32 at both: one half of the keys fetches the first feature, the other
// half the second.
template <int NP>
INLINE void fetch_features(Ahead after, const int8_t* keys, long size) {
  after.fetch(keys + ((uintptr_t)keys & 32 ? size : 0));
}

// Sixteen keys of a block of `size`, in NP vectors that lie side by side, at two neighbouring features: acc += their
// products with MR rows of q.
template <int MR, int NP, class T>
INLINE void add_features(F16 (&acc)[MR][NP], const bf16* q, long dim, const T* keys, long size, Ahead after) {
  U16 words[NP];
  fetch_features<NP>(after, keys, size);
#pragma GCC unroll 2
  for (int j = 0; j < NP; j++) words[j] = key_words(keys + j * TOGETHER<T> * LANES, size);
  add_words(acc, q, dim, words);
}

template <int MR, int NP, class T>
INLINE void add_features(F16 (&acc)[MR][NP], const float* q, long dim, const T* keys, long size, Ahead after) {
  fetch_features<NP>(after, keys, size);
  if constexpr (ONE_AT_A_TIME<MR, NP>) {
#pragma GCC unroll 2
    for (int j = 0; j < NP; j++) {
      const T* const at = keys + j * TOGETHER<T> * LANES;
      add_one(acc, j, q, dim, key_pair(at, size).even);
      add_one(acc, j, q + 1, dim, key_pair(at, size).odd);
    }
    return;
  }
  Pair pairs[NP];
#pragma GCC unroll 2
  for (int j = 0; j < NP; j++) pairs[j] = key_pair(keys + j * TOGETHER<T> * LANES, size);
#pragma GCC unroll 4
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
    for (int j = 0; j < NP; j++) acc[i][j] += splat(q[i * dim]) * pairs[j].even;
#pragma GCC unroll 4
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
    for (int j = 0; j < NP; j++) acc[i][j] += splat(q[i * dim + 1]) * pairs[j].odd;
}

// A way of summing has the type of the cache, that of the factors, which are queries and weights, and the rows that it
// takes at once. It computes
//   scores: q [MR, dim] times transposed keys [dim, NP * 16] of a block of `size` -> to [MR, NP * 16], rows `stride` apart;
//   sums: out [MR, NV * 16] += p [MR, count] times NV * 16 features, from `feature` on, of the `count` values at `rows`;
//     `count` is even and at most BF16_INPUTS.

// In the order of features and keys.
template <class T, class X>
struct OneByOne {
  using Cached = T;
  using Factor = X;
  static constexpr int AT_ONCE = 4;  // rows: with four vectors of features, sixteen sums in 32 registers

  template <int MR, int NP>
  static void scores(const X* q, long dim, const T* keys, long size, Ahead after, float* to, long stride) {
    F16 acc[MR][NP] = {};
    for (long d = 0; d < dim; d += 2) add_features(acc, q + d, dim, keys + d * size, size, after);
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NP; j++) store(to + i * stride + j * LANES, acc[i][j]);
  }

  template <int MR, int NV, class Add>
  static void sum(float* out, long out_row, long count, Add&& add) {
    F16 acc[MR][NV];
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) acc[i][j] = load(out + i * out_row + j * LANES);
    for (long k = 0; k < count; k += 2) add(acc, k);
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) store(out + i * out_row + j * LANES, acc[i][j]);
  }
};

// In float32, from a cache of T.
template <class T>
struct InFloats : OneByOne<T, float> {
  static constexpr Weights FORM = Weights::FLOATS;

  template <int MR, int NV>
  static void sums(const float* p, long p_row, const T* const* rows, long count, long feature, Ahead after, float* out,
                   long out_row) {
    InFloats::template sum<MR, NV>(out + feature, out_row, count, [&](auto& acc, long k) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int key = 0; key < 2; key++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) {
          const T* const at = rows[k + key] + feature + j * LANES;
          if (j * LANES * sizeof(T) % 64 == 0) after.fetch(at);
          const F16 value = load(at);
#pragma GCC unroll 4
          for (int i = 0; i < MR; i++) acc[i][j] += splat(p[i * p_row + k + key]) * value;
        }
    });
  }
};

// In pairs of bfloat16, from a cache of T.
template <class T>
struct InPairs : OneByOne<T, bf16> {
  static constexpr Weights FORM = Weights::HALVES;

  template <int MR, int NV>
  static void sums(const bf16* p, long p_row, const T* const* rows, long count, long feature, Ahead after, float* out,
                   long out_row) {
    InPairs::template sum<MR, NV>(out + feature, out_row, count, [&](auto& acc, long k) __attribute__((always_inline)) {
      const T *const even = rows[k] + feature, *const odd = rows[k + 1] + feature;
      U16 values[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        if (j * LANES * sizeof(T) % 64 == 0) after.fetch(even + j * LANES), after.fetch(odd + j * LANES);
        values[j] = interleaved(even + j * LANES, odd + j * LANES);
      }
      add_words(acc, p + k, p_row, values);
    });
  }
};

// As tile registers do it, from a cache of T: inputs are rounded, and of every 32 the even and the odd ones are summed
// apart.
template <class T>
struct AsTiles {
  using Cached = T;
  using Factor = float;
  static constexpr int AT_ONCE = 3;  // rows: with four vectors of features, 24 sums in 32 registers
  static constexpr Weights FORM = Weights::ROUNDED;

  template <int MR, int NP>
  static void scores(const float* q, long dim, const T* keys, long size, Ahead after, float* to, long stride) {
    F16 total[MR][NP] = {};
    for (long step = 0; step < dim; step += BF16_INPUTS) {
      F16 even[MR][NP] = {}, odd[MR][NP] = {};
      for (long d = step; d < step + BF16_INPUTS; d += 2) {
        fetch_features<NP>(after, keys + d * size, size);
#pragma GCC unroll 2
        for (int j = 0; j < NP; j++) {
          const Pair key = key_pair(keys + d * size + j * TOGETHER<T> * LANES, size);
#pragma GCC unroll 4
          for (int i = 0; i < MR; i++) {
            even[i][j] += splat(q[i * dim + d]) * key.even;
            odd[i][j] += splat(q[i * dim + d + 1]) * key.odd;
          }
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NP; j++) total[i][j] += even[i][j] + odd[i][j];
    }
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NP; j++) store(to + i * stride + j * LANES, total[i][j]);
  }

  template <int MR, int NV>
  static void sums(const float* p, long p_row, const T* const* rows, long count, long feature, Ahead after, float* out,
                   long out_row) {
    F16 even[MR][NV] = {}, odd[MR][NV] = {};
    for (long k = 0; k < count; k += 2) {
      const T *const low = rows[k] + feature, *const high = rows[k + 1] + feature;
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        if (j * LANES * sizeof(T) % 64 == 0) after.fetch(low + j * LANES), after.fetch(high + j * LANES);
        const F16 a = load(low + j * LANES), b = load(high + j * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < MR; i++) {
          even[i][j] += splat(p[i * p_row + k]) * a;
          odd[i][j] += splat(p[i * p_row + k + 1]) * b;
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        float* const at = out + i * out_row + feature + j * LANES;
        store(at, load(at) + (even[i][j] + odd[i][j]));
      }
  }
};

// Calls task(std::integral_constant of a number of rows, first row) for groups of at most MOST, 3 or 4, that cover all
// rows.
template <int MOST, class F>
INLINE void rows_at_once(long rows, F&& task) {
  long r = 0;
  for (; r + MOST <= rows; r += MOST) task(std::integral_constant<int, MOST>{}, r);
  if (rows - r == 3) task(std::integral_constant<int, 3>{}, r);
  if (rows - r == 2) task(std::integral_constant<int, 2>{}, r);
  if (rows - r == 1) task(std::integral_constant<int, 1>{}, r);
}

// q [rows, dim] times a block of transposed keys -> scores [rows, width]; `width` is a multiple of sixteen. Fetches block
// `next`.
template <class Way>
void few_scores(long rows, const typename Way::Factor* q, long dim, const typename Way::Cached* keys, long size, long width,
                const void* next, float* to, long stride) {
  const Ahead after = ahead(keys, next);
  rows_at_once<Way::AT_ONCE>(rows, [&](auto some, long r) {
    constexpr int MOST = vectors_at_once(some, 2);
    long k = 0;
    for (; MOST == 2 && k + 2 * LANES <= width; k += 2 * LANES)
      Way::template scores<some, 2>(q + r * dim, dim, keys + k * TOGETHER<typename Way::Cached>, size, after,
                                    to + r * stride + k, stride);
    for (; k < width; k += LANES)
      Way::template scores<some, 1>(q + r * dim, dim, keys + k * TOGETHER<typename Way::Cached>, size, after,
                                    to + r * stride + k, stride);
  });
}

// out [rows, width] += p [rows, count] times the `count` values at `rows_at`: one step of tiles.
template <class Way>
void few_sums(long rows, const typename Way::Factor* p, long p_row, const typename Way::Cached* const* rows_at, long count,
              long width, Ahead after, float* out) {
  rows_at_once<Way::AT_ONCE>(rows, [&](auto some, long r) {
    const auto* const at = p + r * p_row;
    float* const to = out + r * width;
    constexpr int MOST = vectors_at_once(some, 4);
    long f = 0;
    for (; MOST == 4 && f + 4 * LANES <= width; f += 4 * LANES)
      Way::template sums<some, 4>(at, p_row, rows_at, count, f, after, to, width);
    for (; MOST == 3 && f + 3 * LANES <= width; f += 3 * LANES)
      Way::template sums<some, 3>(at, p_row, rows_at, count, f, after, to, width);
    for (; MOST >= 2 && f + 2 * LANES <= width; f += 2 * LANES)
      Way::template sums<some, 2>(at, p_row, rows_at, count, f, after, to, width);
    for (; f < width; f += LANES) Way::template sums<some, 1>(at, p_row, rows_at, count, f, after, to, width);
  });
}

}  // namespace
