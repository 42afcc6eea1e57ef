// Products of attention on tile registers, and the panels of keys and values that they take.
#pragma once
#include "tiles.h"

namespace {

// Sixteen pairs: a number of `even` and a number of `odd` each.
INLINE void interleave(const bf16* even, const bf16* odd, bf16* to) {
  const U16 words = ((U16)load(even) >> 16) | (U16)load(odd);
  memcpy(to, &words, sizeof words);
}

// Sixteen transposed keys [dim, 16], rows `row` elements apart -> a panel [dim/2][16][2].
void key_panel(const bf16* keys, long row, long dim, bf16* to) {
  for (long d = 0; d < dim; d += 2) interleave(keys + d * row, keys + (d + 1) * row, to + d * LANES);
}

// The values [dim] of two neighbouring positions -> pairs in panels of sixteen features, `panel` elements apart. A null
// pointer stands for zeros.
void value_pair(const bf16* even, const bf16* odd, long dim, bf16* to, long panel) {
  static const bf16 zeros[LANES] = {};
  for (long d = 0; d < dim; d += LANES, to += panel) interleave(even ? even + d : zeros, odd ? odd + d : zeros, to);
}

// y [rows, 32] = x w, or += if `add`, for up to 32 rows. A TileScope of TILE_ROWS must live. Whole tiles of rows are read
// and written.
struct TileBlock {
  const bf16* x;      // [rows, inputs], rows x_row elements apart
  const bf16 *w, *v;  // panels of the first and the other sixteen outputs; v may be null
  float* y;           // rows y_row elements apart
  long x_row, y_row, rows, steps;
  bool add;

  void multiply() const;
};

#ifdef __AMX_BF16__

template <bool LOW, bool V>
INLINE void multiply_block(const TileBlock& b) {
  const long x_bytes = b.x_row * sizeof(bf16), y_bytes = b.y_row * sizeof(float);
  float *const y = b.y, *const y_low = y + TILE_ROWS * b.y_row;
  asm volatile("" ::: "memory");  // GCC does not know that tile loads read memory: stores stay before this line
  if (b.add) {
    _tile_loadd(0, y, y_bytes);
    if (V) _tile_loadd(1, y + LANES, y_bytes);
    if (LOW) _tile_loadd(2, y_low, y_bytes);
    if (LOW && V) _tile_loadd(3, y_low + LANES, y_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bf16 *x = b.x, *low = x + TILE_ROWS * b.x_row, *w = b.w, *v = b.v;
  for (long at = 0; at < b.steps; at++) {
    _tile_loadd(4, x + at * BF16_INPUTS, x_bytes);
    _tile_loadd(6, w + at * TILE_SIZE, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (V) {
      _tile_loadd(7, v + at * TILE_SIZE, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (LOW) {
      _tile_loadd(5, low + at * BF16_INPUTS, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (V) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, y, y_bytes);
  if (V) _tile_stored(1, y + LANES, y_bytes);
  if (LOW) _tile_stored(2, y_low, y_bytes);
  if (LOW && V) _tile_stored(3, y_low + LANES, y_bytes);
}

inline void TileBlock::multiply() const {
  if (rows > TILE_ROWS)
    v ? multiply_block<true, true>(*this) : multiply_block<true, false>(*this);
  else
    v ? multiply_block<false, true>(*this) : multiply_block<false, false>(*this);
}

#else

inline void TileBlock::multiply() const { __builtin_trap(); }

#endif

}  // namespace
