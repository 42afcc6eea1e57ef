// Rows times two neighbouring inputs at a time, on vector registers. A vector holds sixteen outputs, and an output has one
// accumulator, which adds in the order of the inputs.
#pragma once
#include "vec.h"

namespace {

// The weights of sixteen outputs at two neighbouring inputs.
struct Pair {
  F16 even, odd;
};

INLINE Pair load_pair(const float* p) { return {load(p), load(p + LANES)}; }

// The same in bfloat16: the even input in the low half of each lane, the odd input in the high half.
INLINE U16 load_words(const bf16* p) { return load_bytes<U16>(p); }

INLINE Pair load_pair(const bf16* p) {
  const U16 words = load_words(p);
  return {(F16)(words << 16), (F16)(words & 0xffff0000u)};
}

// Whether products of MR rows with NR vectors add one vector of weights at a time. Where registers are short, GCC would load
// more of them at once, and keep sums in memory.
template <int MR, int NR>
constexpr bool ONE_AT_A_TIME = REGISTERS < 32 && MR > 2 && MR * NR > 4;

// acc[][j] += the products of MR numbers of x, `row` apart, with a vector. No load moves across the end.
template <int MR, int NR>
INLINE void add_one(F16 (&acc)[MR][NR], int j, const float* x, long row, F16 vector) {
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) acc[i][j] += splat(x[i * row]) * vector;
  asm volatile("" ::: "memory");
}

// acc += the products of MR rows of x, `row` apart, with NR panels, `panel` apart, at one pair of inputs.
template <int MR, int NR, class W>
INLINE void add_pair(F16 (&acc)[MR][NR], const float* x, long row, const W* w, long panel) {
  if constexpr (ONE_AT_A_TIME<MR, NR>) {
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      add_one(acc, j, x, row, load_pair(w + j * panel).even);
      add_one(acc, j, x + 1, row, load_pair(w + j * panel).odd);
    }
    return;
  }
  Pair b[NR];
#pragma GCC unroll 4
  for (int j = 0; j < NR; j++) b[j] = load_pair(w + j * panel);
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    const F16 a = splat(x[i * row]);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].even;
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    const F16 a = splat(x[i * row + 1]);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].odd;
  }
}

// The same with words of NR panels.
template <int MR, int NR>
INLINE void add_words(F16 (&acc)[MR][NR], const bf16* x, long row, const U16 (&b)[NR]) {
#pragma GCC unroll 20
  for (int i = 0; i < MR; i++) {
    const U16 a = splat_pair(x + i * row);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = add_products(acc[i][j], a, b[j]);
  }
}

template <int MR, int NR>
INLINE void add_pair(F16 (&acc)[MR][NR], const bf16* x, long row, const bf16* w, long panel) {
  U16 b[NR];
#pragma GCC unroll 4
  for (int j = 0; j < NR; j++) b[j] = load_words(w + j * panel);
  add_words(acc, x, row, b);
}

}  // namespace
