// Products of attention, by tile registers or by pairs on vector registers, and the panels of keys and values that they
// take.
#pragma once
#include "attention_pairs.h"
#include "tiles.h"

namespace {

// Sixteen transposed keys of a block of `size` -> a panel [dim/2][16][2].
template <class T>
void key_panel(const T* keys, long size, long dim, bf16* to) {
  for (long d = 0; d < dim; d += 2) {
    const U16 words = key_words(keys + d * size, size);
    memcpy(to + d * LANES, &words, sizeof words);
  }
}

// The values [dim] of two neighbouring positions -> pairs in panels of sixteen features, `panel` elements apart. A null
// pointer stands for zeros.
template <class T>
void value_pair(const T* even, const T* odd, long dim, bf16* to, long panel) {
  static const T zeros[LANES] = {};
  for (long d = 0; d < dim; d += LANES, to += panel) {
    const U16 words = interleaved(even ? even + d : zeros, odd ? odd + d : zeros);
    memcpy(to, &words, sizeof words);
  }
}

// y [rows, 32] = x w, or += if `add`, for up to 32 rows. Whole tiles of rows are read and written.
struct BlockProduct {
  const bf16* x;      // [rows, inputs], rows x_row elements apart
  const bf16 *w, *v;  // panels of the first and the other sixteen outputs; v may be null
  float* y;           // rows y_row elements apart
  long x_row, y_row, rows, steps;
  bool add;

  // On tile registers, while a TileScope of TILE_ROWS lives, or else in pairs.
  void multiply(bool tiles) const { tiles ? on_tiles() : in_pairs(); }

 private:
  void on_tiles() const;
  void in_pairs() const;
};

constexpr int PAIR_ROWS = 8;  // with two panels: sixteen sums, two words and one input in 32 registers

template <int NP>
void multiply_in_pairs(const BlockProduct& b) {
  for (long row = 0; row < b.rows; row += PAIR_ROWS) {
    float* const y = b.y + row * b.y_row;
    F16 acc[PAIR_ROWS][NP];
#pragma GCC unroll 8
    for (int i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NP; j++) acc[i][j] = b.add ? load(y + i * b.y_row + j * LANES) : F16{};
    const bf16 *x = b.x + row * b.x_row, *w = b.w;
    for (const bf16* const end = x + b.steps * BF16_INPUTS; x < end; x += 2, w += 2 * LANES)
      add_pair(acc, x, b.x_row, w, NP > 1 ? b.v - b.w : 0);
#pragma GCC unroll 8
    for (int i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NP; j++) store(y + i * b.y_row + j * LANES, acc[i][j]);
  }
}

inline void BlockProduct::in_pairs() const { v ? multiply_in_pairs<2>(*this) : multiply_in_pairs<1>(*this); }

#ifdef __AMX_BF16__

template <bool LOW, bool V>
INLINE void multiply_block(const BlockProduct& b) {
  using Sums = TileSums<1 + LOW, 1 + V>;
  const long x_bytes = b.x_row * sizeof(bf16), y_bytes = b.y_row * sizeof(float);
  float *const y = b.y, *const y_low = y + TILE_ROWS * b.y_row;
  asm volatile("" ::: "memory");  // GCC does not know that tile loads read memory: stores stay before this line
  if (b.add)
    Sums::load(y, y_low, y_bytes);
  else
    Sums::zero();
  const bf16 *x = b.x, *low = x + TILE_ROWS * b.x_row, *w = b.w, *v = b.v;
  for (long at = 0; at < b.steps; at++) {
    const long of_rows = at * BF16_INPUTS, of_panels = at * TILE_SIZE;
    Bf16Step::add<1 + LOW, 1 + V>(x + of_rows, low + of_rows, w + of_panels, v + of_panels, x_bytes);
  }
  Sums::store(y, y_low, y_bytes);
}

inline void BlockProduct::on_tiles() const {
  if (rows > TILE_ROWS)
    v ? multiply_block<true, true>(*this) : multiply_block<true, false>(*this);
  else
    v ? multiply_block<false, true>(*this) : multiply_block<false, false>(*this);
}

#else

inline void BlockProduct::on_tiles() const { __builtin_trap(); }

#endif

}  // namespace
