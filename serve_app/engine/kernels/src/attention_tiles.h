// Scores and weighted sums of attention on tile registers: what lies in the cache becomes panels of bfloat16 pairs.
#pragma once
#include "tiles.h"

namespace {

// Sixteen pairs, one of each row.
INLINE void interleave(const bf16* even, const bf16* odd, bf16* to) {
  const U16 words = ((U16)load(even) >> 16) | (U16)load(odd);
  memcpy(to, &words, sizeof words);
}

// keys [dim, `row` apart], sixteen of them -> a panel [dim/2][16][2]
void key_panel(const bf16* keys, long row, long dim, bf16* to) {
  for (long d = 0; d < dim; d += 2) interleave(keys + d * row, keys + (d + 1) * row, to + d * LANES);
}

// values at two neighbouring positions, either may be null for zeros -> pairs in panels of sixteen features, `panel`
// elements apart
void value_pair(const bf16* even, const bf16* odd, long dim, bf16* to, long panel) {
  static const bf16 zeros[LANES] = {};
  for (long d = 0; d < dim; d += LANES, to += panel) interleave(even ? even + d : zeros, odd ? odd + d : zeros, to);
}

// y [rows, panels * 16] (+)= x W^T. x: tiles of rows; w: panels, both of `inputs` inputs, a multiple of 32.
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
