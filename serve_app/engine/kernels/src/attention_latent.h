// Values that are the first features of their keys, as rows.
#pragma once
#include "cache_rows.h"

namespace {

typedef uint32_t U4 __attribute__((vector_size(16)));

// Turns columns of four rows into rows.
INLINE void transpose(U4 (&rows)[4]) {
#pragma GCC unroll 2
  for (int step = 0; step < 2; step++) {
    const U4 a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    rows[0] = U4{a[0], c[0], a[1], c[1]}, rows[1] = U4{a[2], c[2], a[3], c[3]};
    rows[2] = U4{b[0], d[0], b[1], d[1]}, rows[3] = U4{b[2], d[2], b[3], d[3]};
  }
}

// The first `dim` features, a multiple of sixteen, of sixteen neighbouring keys of a block of `size` -> to [16, dim]. The
// features that lie together are one word.
template <class T>
void latent_values(const T* keys, long size, long dim, T* to) {
  if constexpr (TOGETHER<T> * sizeof(T) == sizeof(uint32_t)) {
    const long words = dim / TOGETHER<T>;
    const auto from = [&](long word, long key) { return keys + (word * size + key) * TOGETHER<T>; };
    const auto at = [&](long word, long key) { return to + key * dim + word * TOGETHER<T>; };
    long word = 0;
#ifdef __AVX512F__
    for (; word + LANES <= words; word += LANES) {
      __m512i rows[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) rows[i] = _mm512_loadu_si512(from(word + i, 0));
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) _mm512_storeu_si512(at(word, i), rows[i]);
    }
#endif
    for (; word < words; word += 4)
      for (long key = 0; key < LANES; key += 4) {
        U4 rows[4];
        for (int i = 0; i < 4; i++) memcpy(&rows[i], from(word + i, key), sizeof rows[i]);
        transpose(rows);
        for (int i = 0; i < 4; i++) memcpy(at(word, key + i), &rows[i], sizeof rows[i]);
      }
  } else {
    __builtin_trap();  // codes have no latent values
  }
}

}  // namespace
