// Scores and weighted sums of a few rows on vector registers, read from the cache in place. Inputs are rounded, and
// sums are taken, as tile registers do it. So a row gets the same bits here as on tiles, except for subnormals, which
// tiles take for 0.
#pragma once
#include <type_traits>

#include "panels.h"

namespace {

constexpr int AT_ONCE = 3;  // rows: with four vectors of features, 24 sums in 32 registers

// Fetches one block into the second-level cache while another block of the same size is read. The fetched address is
// `distance` bytes from the read one. The distance is a number, as blocks of two caches are parts of no common array.
struct Ahead {
  uintptr_t distance;

  void fetch(const bf16* read) const { __builtin_prefetch((const void*)((uintptr_t)read + distance), 0, 2); }
};

// The fetching of `next` while `now` is read; null: `now` itself, which fetches nothing new.
inline Ahead ahead(const bf16* now, const bf16* next) { return {next ? (uintptr_t)next - (uintptr_t)now : 0}; }

// q [MR, dim] times transposed keys [dim, NP * 16], rows `size` apart -> to [MR, NP * 16], rows `stride` apart.
template <int MR, int NP>
INLINE void scores_of(const float* q, long dim, const bf16* keys, long size, Ahead after, float* to, long stride) {
  F16 total[MR][NP] = {};
  for (long step = 0; step < dim; step += BF16_INPUTS) {
    F16 even[MR][NP] = {}, odd[MR][NP] = {};
    for (long d = step; d < step + BF16_INPUTS; d += 2) {
      const bf16 *const low = keys + d * size, *const high = low + size;
      after.fetch(low), after.fetch(high);
#pragma GCC unroll 2
      for (int j = 0; j < NP; j++) {
        const F16 a = load(low + j * LANES), b = load(high + j * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < MR; i++) {
          even[i][j] += splat(q[i * dim + d]) * a;
          odd[i][j] += splat(q[i * dim + d + 1]) * b;
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

// The same for `width` keys, a multiple of sixteen.
template <int MR>
void scores_of_rows(const float* q, long dim, const bf16* keys, long size, long width, Ahead after, float* to, long stride) {
  long k = 0;
  for (; k + 2 * LANES <= width; k += 2 * LANES) scores_of<MR, 2>(q, dim, keys + k, size, after, to + k, stride);
  if (k < width) scores_of<MR, 1>(q, dim, keys + k, size, after, to + k, stride);
}

// out [MR, NV * 16] += p [MR, count] times NV * 16 features, from `feature` on, of the `count` values at `rows`. count
// is even and at most BF16_INPUTS.
template <int MR, int NV>
INLINE void sums_of(const float* p, long p_row, const bf16* const* rows, long count, long feature, Ahead after, float* out,
                    long out_row) {
  F16 even[MR][NV] = {}, odd[MR][NV] = {};
  for (long k = 0; k < count; k += 2) {
    const bf16 *const low = rows[k] + feature, *const high = rows[k + 1] + feature;
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) {
      if (j % 2 == 0) after.fetch(low + j * LANES), after.fetch(high + j * LANES);
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

// The same for all features, `width` of them, a multiple of sixteen.
template <int MR>
void sums_of_rows(const float* p, long p_row, const bf16* const* rows, long count, long width, Ahead after, float* out,
                  long out_row) {
  long f = 0;
  for (; f + 4 * LANES <= width; f += 4 * LANES) sums_of<MR, 4>(p, p_row, rows, count, f, after, out, out_row);
  for (; f + 2 * LANES <= width; f += 2 * LANES) sums_of<MR, 2>(p, p_row, rows, count, f, after, out, out_row);
  if (f < width) sums_of<MR, 1>(p, p_row, rows, count, f, after, out, out_row);
}

// Calls task(std::integral_constant of a number of rows, first row) for groups of at most AT_ONCE that cover all rows.
template <class F>
INLINE void rows_at_once(long rows, F&& task) {
  long r = 0;
  for (; r + AT_ONCE <= rows; r += AT_ONCE) task(std::integral_constant<int, AT_ONCE>{}, r);
  if (rows - r == 2) task(std::integral_constant<int, 2>{}, r);
  if (rows - r == 1) task(std::integral_constant<int, 1>{}, r);
}

// q [rows, dim], rounded to bfloat16, times a block of transposed keys -> scores [rows, width]. Fetches block `next`.
void few_scores(long rows, const float* q, long dim, const bf16* keys, long size, long width, const bf16* next, float* to,
                long stride) {
  rows_at_once(rows, [&](auto some, long r) {
    scores_of_rows<some>(q + r * dim, dim, keys, size, width, ahead(keys, next), to + r * stride, stride);
  });
}

// out [rows, width] += p [rows, count], rounded to bfloat16, times the `count` values at `rows_at`: one step of tiles.
void few_sums(long rows, const float* p, long p_row, const bf16* const* rows_at, long count, long width, Ahead after,
              float* out) {
  rows_at_once(rows, [&](auto some, long r) {
    sums_of_rows<some>(p + r * p_row, p_row, rows_at, count, width, after, out + r * width, width);
  });
}

}  // namespace
