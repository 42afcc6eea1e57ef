// Products of attention on tile registers, one step at a time, and the panels of keys and values that they take.
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

// y [rows, 32] = x w, or += if `add`, for up to 32 rows. Sums stay in tile registers from the first step to the last,
// and other work may be done between two steps. A TileScope of TILE_ROWS must live. Whole tiles of rows are read and
// written.
struct TileSteps {
  const bf16* x;      // [rows, inputs], rows x_row elements apart
  const bf16 *w, *v;  // panels of the first and the other sixteen outputs; v may be null
  float* y;           // rows y_row elements apart
  long x_row, y_row, rows, steps;
  bool add;

  void step(long at) const;
};

#ifdef __AMX_BF16__

inline void TileSteps::step(long at) const {
  const long x_bytes = x_row * sizeof(bf16), y_bytes = y_row * sizeof(float);
  float* const y_low = y + TILE_ROWS * y_row;
  const bool low = rows > TILE_ROWS;
  asm volatile("" ::: "memory");  // GCC does not know that tile loads read memory: stores stay before this line
  if (at == 0 && add) {
    _tile_loadd(0, y, y_bytes);
    if (v) _tile_loadd(1, y + LANES, y_bytes);
    if (low) _tile_loadd(2, y_low, y_bytes);
    if (low && v) _tile_loadd(3, y_low + LANES, y_bytes);
  } else if (at == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bf16* const from = x + at * BF16_INPUTS;
  _tile_loadd(4, from, x_bytes);
  _tile_loadd(6, w + at * TILE_SIZE, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (v) {
    _tile_loadd(7, v + at * TILE_SIZE, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (low) {
    _tile_loadd(5, from + TILE_ROWS * x_row, x_bytes);
    _tile_dpbf16ps(2, 5, 6);
    if (v) _tile_dpbf16ps(3, 5, 7);
  }
  if (at + 1 < steps) return;
  _tile_stored(0, y, y_bytes);
  if (v) _tile_stored(1, y + LANES, y_bytes);
  if (low) _tile_stored(2, y_low, y_bytes);
  if (low && v) _tile_stored(3, y_low + LANES, y_bytes);
}

#else

inline void TileSteps::step(long) const { __builtin_trap(); }

#endif

}  // namespace
