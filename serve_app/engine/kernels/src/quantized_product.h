// Products of linear layers with quantised weights, on tile or vector registers. Their outputs are stored, added to what
// is there, or gated.
#pragma once
#include <optional>

#include "quantized_many.h"
#include "rowwise.h"

namespace {

constexpr long INT_FEW = 4;                    // up to so many rows, vectors are as fast as tiles
constexpr long INT4_FEW = 16;                  // up to so many rows, vectors are faster with int4 as it is
constexpr long INT_GROUP = 4;                  // panels that a product takes at once
constexpr long INT_BLOCK = 2 * INT_TILE_ROWS;  // rows

INLINE long widened_bytes(const Int8Weight&, long) { return 0; }
INLINE long widened_bytes(const Int4Weight& weight, long panels) { return panels * weight.steps * INT_TILE; }

// Whether a product of m rows on vector registers widens its panels to int8 first, once for all rows.
INLINE bool widens(const Int8Weight&, long) { return false; }
INLINE bool widens(const Int4Weight&, long m) { return m > INT4_FEW; }
INLINE void widen_panels(const Int8Weight&, long, long, uint8_t*) {}

// Whether a product of m rows is on tile registers, where there are any.
template <class Weight>
INLINE bool on_few_tiles(const Weight&, long m) {
  return m > INT_FEW;
}

template <class Weight>
INLINE void put_codes(const Weight&, const float* x, long k, long r, const QuantizedRows& to) {
  quantize_row(x, k, r, to);
}

// Computes all rows of x at the panels [0, panels), by tasks of some panels each. With two `parts`, also at the panels
// [panels, 2 * panels). finish(outputs, of the second part, rows, first panel, number of panels) changes the outputs
// [rows, number of panels * 16] in place; then they are written to y, whose rows are n apart, or added if ADD.
template <bool ADD, class Weight, class Y, class Finish>
void multiply_quantized(const Weight& weight, const QuantizedRows& x, long panels, long parts, Y* y, long n,
                        int threads, Finish&& finish) {
  const long m = x.rows;
  const bool tiles = have_int_tiles() && on_few_tiles(weight, m), kept = m <= KEPT_ROWS;
  bool widened = false;
  if constexpr (Weight::PER_OUTPUT) widened = !tiles && widens(weight, m);
  parallel_panels(panels, INT_GROUP, MAX_PANELS, threads, [&](long first, long last, Turn& turn) {
    if (!kept && !turn.mine()) return;
    const long part = (kept ? m : INT_BLOCK) * INT_GROUP * LANES;  // floats
    const long groups = (last - first + INT_GROUP - 1) / INT_GROUP;
    float* const own = own_outputs(parts * part * (kept ? groups : 1));
    const long wide = tiles || widened ? widened_bytes(weight, INT_GROUP) : 0;
    uint8_t* const room = widened_panels(parts * wide);
    std::optional<TileScope> scope;
    if (tiles) scope.emplace(m);
    const long coming = following(first, last, panels, threads);
    for (long g = 0; g < groups; g++) {
      const long j = first + g * INT_GROUP, some = std::min(INT_GROUP, last - j), width = some * LANES;
      const long offset = ((g + 1 < groups ? j + INT_GROUP : coming) - j) * weight.panel();  // bytes to the next panels
      float* const at = own + (kept ? g * parts * part : 0);
      if constexpr (Weight::PER_OUTPUT)
        for (long p = 0; widened && p < parts; p++) widen_panels(weight, j + p * panels, some, room + p * wide);
      for (long row = 0; row < m; row += INT_BLOCK) {
        const long count = std::min(INT_BLOCK, m - row);
        for (long p = 0; p < parts; p++) {
          const long here = j + p * panels;
          if (tiles) {
            on_tiles(weight, x, row, count, here, some, room + p * wide, at + p * part, width);
            continue;
          }
          if constexpr (Weight::PER_OUTPUT)
            if (widened) {
              on_vectors(Int8Weight(room + p * wide, weight.scales + here * LANES, weight.steps), x, row, count, 0, some,
                         0, at + p * part, width);
              continue;
            }
          on_vectors(weight, x, row, count, here, some, row ? 0 : offset, at + p * part, width);
        }
        asm volatile("" ::: "memory");  // GCC must not fuse the last multiplication with an addition of `finish`
        finish(at, at + part, count, j, some);
        if (!kept) hand_over<ADD>(at, count, width, y + row * n, n, n, j * LANES);
      }
    }
    if (!kept || !turn.mine()) return;
    for (long g = 0; g < groups; g++) {
      const long j = first + g * INT_GROUP;
      hand_over<ADD>(own + g * parts * part, m, std::min(INT_GROUP, last - j) * LANES, y, n, n, j * LANES);
    }
  });
}

// y [m, n] = x W^T + bias, or += if ADD. bias: padded to whole panels, or null.
template <bool ADD, class Weight, class Y>
void multiply_quantized(const Weight& weight, const QuantizedRows& x, const float* bias, Y* y, long n, int threads) {
  const long panels = (n + LANES - 1) / LANES;
  if constexpr (Weight::PER_OUTPUT)
    if (have_int_tiles() && x.rows > INT_MANY)
      return multiply_many_quantized<GROUPED>(
        weight, x, (panels + 1) / 2, 1, threads, neighbours(panels),
        each_pair([=](const float* sums, long row, long pair) {
          for (long c = 0; c < 2; c++) {
            const long j = 2 * pair + c, some = std::min(LANES, n - j * LANES);
            if (some <= 0) return;
            Y* const at = y + row * n + j * LANES;
            const F16 v = bias ? load(sums + c * LANES) + load(bias + j * LANES) : load(sums + c * LANES);
            if (some == LANES)
              store(at, ADD ? load(at) + v : v);
            else
              store_some(at, ADD ? load_some(at, some) + v : v, some);
          }
        }));
  multiply_quantized<ADD>(weight, x, panels, 1, y, n, threads,
                          [&](float* out, const float*, long rows, long j, long panels) {
                            if (!bias) return;
                            const long width = panels * LANES;
                            for (long r = 0; r < rows; r++)
                              for (long i = 0; i < width; i += LANES)
                                store(out + r * width + i, load(out + r * width + i) + load(bias + j * LANES + i));
                          });
}

// y [m, n] = act(x G^T) * (x U^T): the first n outputs of the weight are gates G, the other n are U. n is a multiple of
// sixteen.
template <class Weight>
void multiply_quantized_gated(const Weight& weight, const QuantizedRows& x, const float* bias, float* y, long n, bool gelu,
                              int threads) {
  const long count = n / LANES;
  if constexpr (Weight::PER_OUTPUT)
    if (have_int_tiles() && x.rows > INT_MANY)
      return multiply_many_quantized<GROUPED>(
        weight, x, count, 1, threads, [=](long pair) { return PanelNumbers{pair, pair + count}; },
        each_pair([=](const float* sums, long row, long pair) {
          F16 gate = load(sums), up = load(sums + LANES);
          if (bias) gate += load(bias + pair * LANES), up += load(bias + n + pair * LANES);
          store(y + row * n + pair * LANES, gate_times_up(gate, up, gelu));
        }));
  multiply_quantized<false>(weight, x, count, 2, y, n, threads,
                            [&](float* gates, const float* ups, long rows, long j, long panels) {
                              const long width = panels * LANES;
                              for (long r = 0; r < rows; r++)
                                for (long i = 0; i < width; i += LANES) {
                                  F16 gate = load(gates + r * width + i), up = load(ups + r * width + i);
                                  if (bias) gate += load(bias + j * LANES + i), up += load(bias + n + j * LANES + i);
                                  store(gates + r * width + i, gate_times_up(gate, up, gelu));
                                }
                            });
}

}  // namespace
