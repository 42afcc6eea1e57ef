// Products of linear layers on tile registers. Their sums are stored, added to what is there, or gated.
#pragma once
#include "many_rows.h"
#include "panels_ahead.h"
#include "rowwise.h"
#include "tiles.h"

namespace {

constexpr long FEW_ROWS = BLOCK;  // of products whose panels come from memory for each block of rows alone

// The sums of a block of rows at two panels.
struct alignas(64) TileSums {
  float at[BLOCK][2 * LANES];

  // At panels `first` and `second`, or at one if `second` is negative. `row`: the first row, as the first block of rows
  // has panels from memory.
  void compute(const WholePanels<bf16>& weight, const bf16* x, long row, long rows, long first, long second) {
    const bf16 *const w = weight.at(first), *const v = second < 0 ? nullptr : weight.at(second);
    const long steps = weight.panel / TILE_SIZE;
    row ? tile_product(rows, x, steps, FetchedTiles<false>(w, v), at[0], 2 * LANES)
        : tile_product(rows, x, steps, FetchedTiles<true>(w, v), at[0], 2 * LANES);
  }
  void compute(const CompactWeight& weight, const bf16* x, long, long rows, long first, long second) {
    const long after = second == first + 1 ? 2 : 1;
    tile_product(rows, x, weight.steps, CompactTiles(weight, first, second, after), at[0], 2 * LANES);
  }
  F16 row(long r, long panel) const { return load(at[r] + panel * LANES); }
};

// Calls block(first row, number of rows, tiles of x of these rows) for blocks that cover all m rows.
template <class F>
void row_blocks(const bf16* x, long m, long k, F&& block) {
  for (long row = 0; row < m; row += BLOCK)
    block(row, std::min(BLOCK, m - row), x + row * padded_inputs(k, false));
}

// y [m, n] = x W^T + bias, or += if ADD, as in vector_product.h. x: tiles of rows from `round_tiles`. bias: padded to
// whole panels, or null.
template <bool ADD, class Weight, class Y>
void multiply_tiles(const bf16* x, const Weight& weight, const float* bias, Y* y, long m, long n, long k, int threads) {
  const long steps = padded_inputs(k, false) / BF16_INPUTS, panels = (n + LANES - 1) / LANES;
  if (m > FEW_ROWS)
    return multiply_many<Bf16Step, GROUPED>(
        ManyRows(x, m, steps), (panels + 1) / 2, 1, threads, panels_ahead(weight, neighbours(panels)),
        each_pair([&](const float* sums, long row, long pair) {
          for (long c = 0; c < 2; c++) {
            const long j = 2 * pair + c, some = std::min(LANES, n - j * LANES);
            if (some <= 0) return;  // the last pair has one panel, and there is no bias for another
            Y* const at = y + row * n + j * LANES;
            const F16 v = load(sums + c * LANES) + bias_at(bias, j);
            if (some == LANES)
              store(at, ADD ? load(at) + v : v);
            else
              store_some(at, ADD ? load_some(at, some) + v : v, some);
          }
        }));
  parallel_panels(panels, 2, MAX_PANELS, threads, [&](long first, long last, Turn& turn) {
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    const TileScope scope(m);
    TileSums sums;
    const long width = (last - first) * LANES;
    float* const own = kept ? own_outputs(m * width) : nullptr;
    row_blocks(x, m, k, [&](long row, long count, const bf16* block) {
      for (long j = first; j < last; j += 2) {
        const long two = j + 1 < last;
        sums.compute(weight, block, row, count, j, two ? j + 1 : -1);
        for (long c = 0; c <= two; c++) {
          const F16 b = bias_at(bias, j + c);
          const long some = std::min(LANES, n - (j + c) * LANES);
          for (long r = 0; r < count; r++) {
            Y* const at = y + (row + r) * n + (j + c) * LANES;
            const F16 v = sums.row(r, c) + b;
            if (kept)
              store(own + (row + r) * width + (j + c - first) * LANES, v);
            else if (some == LANES)
              store(at, ADD ? load(at) + v : v);
            else
              store_some(at, ADD ? load_some(at, some) + v : v, some);
          }
        }
      }
    });
    if (kept && turn.mine()) hand_over<ADD>(own, m, width, y, n, n, first * LANES);
  });
}

// The inputs of the next product, as tiles: act(x G^T) * (x U^T) [m, n], as below, of more than FEW_ROWS rows.
template <class Weight>
void multiply_gated_to_tiles(const bf16* x, const Weight& weight, const float* bias, bf16* tiles, long m, long n, long k,
                             bool gelu, int threads) {
  const long count = n / LANES, padded = padded_inputs(n, false);
  multiply_many<Bf16Step, 1>(
      ManyRows(x, m, padded_inputs(k, false) / BF16_INPUTS), count, 1, threads,
      panels_ahead(weight, [=](long pair) { return PanelNumbers{pair, pair + count}; }),
      each_pair([&](const float* sums, long row, long pair) {
        const F16 gate = load(sums) + bias_at(bias, pair), up = load(sums + LANES) + bias_at(bias, pair + count);
        bf16* const to = tiles + tile_offset(row, pair * LANES, padded);
        store(to, gate_times_up(gate, up, gelu));
        if (pair + 1 == count && padded > n) store(to + LANES, F16{});
      }));
}

// y [m, n] = act(x G^T) * (x U^T): the first n outputs of the weight are gates G, the other n are U. n is a multiple of
// sixteen.
template <class Weight>
void multiply_gated_tiles(const bf16* x, const Weight& weight, const float* bias, float* y, long m, long n, long k,
                          bool gelu, int threads) {
  const long count = n / LANES;
  parallel_panels(count, 1, MAX_PANELS, threads, [&](long first, long last, Turn& turn) {
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    const TileScope scope(m);
    TileSums sums;
    const long width = (last - first) * LANES;
    float* const to = kept ? own_outputs(m * width) : y + first * LANES;
    const long stride = kept ? width : n;
    row_blocks(x, m, k, [&](long row, long size, const bf16* block) {
      for (long j = first; j < last; j++) {
        sums.compute(weight, block, row, size, j, j + count);
        const F16 gate = bias_at(bias, j), up = bias_at(bias, j + count);
        for (long r = 0; r < size; r++)
          store(to + (row + r) * stride + (j - first) * LANES,
                gate_times_up(sums.row(r, 0) + gate, sums.row(r, 1) + up, gelu));
      }
    });
    if (kept && turn.mine()) hand_over<false>(to, m, width, y, n, n, first * LANES);
  });
}

}  // namespace
