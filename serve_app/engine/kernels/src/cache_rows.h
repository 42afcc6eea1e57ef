// The writing of keys and values to the cache.
#pragma once
#include <algorithm>

#include "cache.h"
#include "codes.h"

namespace {

// Writes `count` neighbouring keys, up to sixteen, rows of `keys` [count, dim], to columns of `to`: the place of the first
// one in a block of `size` keys.
template <class T>
void write_columns(const T* keys, long dim, long count, T* to, long size) {
  for (long d = 0; d < dim; d += TOGETHER<T>)
    for (long i = 0; i < count; i++)
      memcpy(to + d * size + i * TOGETHER<T>, keys + i * dim + d, TOGETHER<T> * sizeof(T));
}

// Eight codes of a and of b from `I` on, in turn.
template <int I>
INLINE C16 in_turn(C16 a, C16 b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, I, I + 16, I + 1, I + 17, I + 2, I + 18, I + 3, I + 19, I + 4, I + 20, I + 5, I + 21,
                                 I + 6, I + 22, I + 7, I + 23);
#else  // GCC before 12
  return __builtin_shuffle(a, b, C16{I, I + 16, I + 1, I + 17, I + 2, I + 18, I + 3, I + 19, I + 4, I + 20, I + 5, I + 21,
                                     I + 6, I + 22, I + 7, I + 23});
#endif
}

// The same for sixteen keys of codes; dim is a multiple of sixteen.
inline void write_sixteen(const int8_t* keys, long dim, int8_t* to, long size) {
  for (long d = 0; d < dim; d += LANES) {
    C16 rows[LANES], mixed[LANES];
    for (int i = 0; i < LANES; i++) memcpy(&rows[i], keys + i * dim + d, LANES);
    // Rows that are half of all apart are interleaved, four times: then every row is a column.
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) {
#pragma GCC unroll 8
      for (int i = 0; i < LANES / 2; i++) {
        const C16 a = rows[i], b = rows[i + LANES / 2];
        mixed[2 * i] = in_turn<0>(a, b);
        mixed[2 * i + 1] = in_turn<LANES / 2>(a, b);
      }
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) rows[i] = mixed[i];
    }
    for (int i = 0; i < LANES; i++) memcpy(to + (d + i) * size, &rows[i], LANES);
  }
}

inline void write_columns(const int8_t* keys, long dim, long count, int8_t* to, long size) {
  if (count == LANES && dim % LANES == 0)
    write_sixteen(keys, dim, to, size);
  else
    write_columns<int8_t>(keys, dim, count, to, size);
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

// The same for sixteen keys of bfloat16; dim is a multiple of 32.
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

// Turns a key or value x [n] into what the cache keeps of it. `scale`: the place of its scale, if it has one.
template <class T>
INLINE void keep_row(const float* x, T* to, long n, float*) {
  round_to(x, to, n);
}

inline void keep_row(const float* x, int8_t* to, long n, float* scale) { *scale = put_codes(to, x, n); }

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
