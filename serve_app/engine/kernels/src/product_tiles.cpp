// Products of weights and inputs of bfloat16 on tile registers (AMX).
#include "product_functions.h"
#include "tile_product.h"

namespace {

long room(const Linear& l, long rows) {
  return whole_lines((rows + BLOCK - 1) / BLOCK * BLOCK * padded_inputs(l.inputs, false) / 2);
}

// Rounds x to its row of tiles of bfloat16 [rows/16][k/32][16][32], inputs padded with zeros.
void round_row(const Linear& l, const float* x, float* inputs, long row) {
  const long k = l.inputs;
  bf16* to = (bf16*)inputs + tile_offset(row, 0, padded_inputs(k, false));
  long i = 0;
  for (; i + BF16_INPUTS <= k; i += BF16_INPUTS, to += TILE_SIZE)
    store(to, load(x + i)), store(to + LANES, load(x + i + LANES));
  if (i == k) return;
  store(to, load_some(x + i, std::min(LANES, k - i)));
  store(to + LANES, load_some(x + i + LANES, std::max(0L, k - i - LANES)));
}

template <bool ADD, class Y>
void multiply(const Linear& l, const float* x, Y* y, long m, int threads) {
  with_half_weight(l, [&](const auto& weight) {
    multiply_tiles<ADD>((const bf16*)x, weight, l.bias, y, m, l.outputs, l.inputs, threads);
  });
}

bool gate(const Linear& l, const float* x, const Linear& next, float* y, float* room, long m, bool gelu, int threads) {
  const long n = l.outputs / 2, k = l.inputs;
  const bool to_tiles = next.product == TILES && m > FEW_ROWS;
  with_half_weight(l, [&](const auto& weight) {
    if (to_tiles)
      multiply_gated_to_tiles((const bf16*)x, weight, l.bias, (bf16*)room, m, n, k, gelu, threads);
    else
      multiply_gated_tiles((const bf16*)x, weight, l.bias, y, m, n, k, gelu, threads);
  });
  return to_tiles;
}

}  // namespace

const ProductFunctions tiles_product{room, round_row, multiply<false, float>, multiply<true, float>, multiply<false, bf16>,
                                     gate};
