// The writing of keys and values to the cache.
#pragma once
#include <algorithm>

#include "cache.h"

namespace {

// Writes `count` neighbouring keys, up to sixteen, rows of `keys` [count, dim], to columns of `to`: the place of the first
// one in a block of `size` keys.
template <class T>
void write_columns(const T* keys, long dim, long count, T* to, long size) {
  for (long d = 0; d < dim; d += TOGETHER<T>)
    for (long i = 0; i < count; i++)
      memcpy(to + d * size + i * TOGETHER<T>, keys + i * dim + d, TOGETHER<T> * sizeof(T));
}

#ifdef __AVX512F__

// Turns columns of sixteen rows into rows.
INLINE void transpose(__m512i (&rows)[LANES]) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {  // swaps the squares of `step` numbers beside the diagonal
    const __mmask16 upper = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(step));
    const __m512i first = _mm512_mask_add_epi32(lane, upper, lane, _mm512_set1_epi32(LANES - step));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(step));
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      if (i & step) continue;
      const __m512i a = rows[i], b = rows[i + step];
      rows[i] = _mm512_permutex2var_epi32(a, first, b);
      rows[i + step] = _mm512_permutex2var_epi32(a, second, b);
    }
  }
}

// The same for sixteen keys; dim is a multiple of 32.
inline void write_sixteen(const bf16* keys, long dim, bf16* to, long size) {
  for (long d = 0; d < dim; d += 2 * LANES, to += 2 * LANES * size) {
    __m512i words[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) words[i] = _mm512_loadu_si512(keys + i * dim + d);
    transpose(words);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + 2 * i * size, words[i]);
  }
}

inline void write_columns(const bf16* keys, long dim, long count, bf16* to, long size) {
  if (count == LANES && dim % (2 * LANES) == 0)
    write_sixteen(keys, dim, to, size);
  else
    write_columns<bf16>(keys, dim, count, to, size);
}

#endif

// Rounds x [n] to the type of the cache.
template <class T>
INLINE void round_to(const float* x, T* to, long n) {
  long i = 0;
  for (; i + LANES <= n; i += LANES) store(to + i, load(x + i));
  if (i < n) store_some(to + i, load_some(x + i, n - i), n - i);
}

// Calls run(first row, number of rows) for rows that lie side by side in a block, in pieces of at most sixteen, which
// end where the sixteen keys of a vector of the cache end.
template <class F>
void slot_runs(const int64_t* slots, long first, long last, F&& run) {
  for (long row = first, count; row < last; row += count) {
    const long most = std::min(last - row, LANES - slots[row] % LANES);
    for (count = 1; count < most && slots[row + count] == slots[row] + count;) count++;
    run(row, count);
  }
}

}  // namespace
