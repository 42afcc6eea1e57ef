// Scores and weighted sums of attention on vector registers, in float32. Rows of a matrix are lda, ldb or ldc elements
// apart.
#pragma once
#include "attention_pairs.h"

namespace {

// c [MR, NV * 16] = a [MR, n] b [n, NV * 16], or += if ADD.
template <int MR, int NV, bool ADD, class T>
void small_product(const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc) {
  F16 acc[MR][NV];
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) acc[i][j] = ADD ? load(c + i * ldc + j * LANES) : F16{};
  for (long p = 0; p < n; p++) {
    F16 row[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) row[j] = load(b + p * ldb + j * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++) {
      const F16 x = splat(a[i * lda + p]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) acc[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) store(c + i * ldc + j * LANES, acc[i][j]);
}

// The same for any width that is a multiple of sixteen.
template <int MR, bool ADD, class T>
void row_product(const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc, long width) {
  constexpr int MOST = vectors_at_once(MR, 4);
  long j = 0;
  for (; MOST >= 4 && j + 4 * LANES <= width; j += 4 * LANES)
    small_product<MR, 4, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
  for (; MOST >= 2 && j + 2 * LANES <= width; j += 2 * LANES)
    small_product<MR, 2, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
  for (; j < width; j += LANES) small_product<MR, 1, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
}

// The same for any number m of rows.
template <bool ADD, class T>
void product(long m, const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc, long width) {
  for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc) row_product<6, ADD>(a, lda, b, ldb, n, c, ldc, width);
  switch (m) {
    case 5: return row_product<5, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 4: return row_product<4, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 3: return row_product<3, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 2: return row_product<2, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 1: return row_product<1, ADD>(a, lda, b, ldb, n, c, ldc, width);
  }
}

// from [m, n] -> to [m, n] float32; n is a multiple of sixteen, and rows are from_row and to_row elements apart.
template <class T>
void widen(const T* from, long from_row, float* to, long to_row, long m, long n) {
  for (long i = 0; i < m; i++)
    for (long j = 0; j < n; j += LANES) store(to + i * to_row + j, load(from + i * from_row + j));
}

// Sixteen transposed keys of a block of `size` -> to [dim, 16] float32, rows to_row apart.
template <class T>
void widen_keys(const T* keys, long size, float* to, long to_row, long dim) {
  for (long d = 0; d < dim; d += 2) {
    const Pair features = key_pair(keys + d * size, size);
    store(to + d * to_row, features.even), store(to + (d + 1) * to_row, features.odd);
  }
}

}  // namespace
