// Scores and weighted sums of attention on tile registers. Keys and values of the cache are copied to panels of
// bfloat16 pairs first.
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

// y [rows, panels * 16] = x W^T, or += if ADD. x: tiles of rows; w: panels. `inputs` of both is a multiple of 32.
template <bool ADD>
void tile_products(long rows, const bf16* x, const bf16* w, long panels, long inputs, float* y, long stride) {
  const long panel = inputs * LANES;
  for (long r = 0; r < rows; r += 2 * TILE_ROWS)
    for (long j = 0; j < panels; j += 2) {
      const bf16* const first = w + j * panel;
      const TileFactors factors{x + r * inputs, first, j + 1 < panels ? first + panel : nullptr, inputs / BF16_INPUTS};
      tile_product<ADD, false>(rows - r, factors, y + r * stride + j * LANES, stride);
    }
}

}  // namespace
