// Products of few rows with compact weights, whose lines are made in registers where they are used: on Zen 5, to write 64
// bytes takes the time of two products. Every output has one accumulator, which adds in the order of the inputs.
//
// A row's sum at one panel waits for itself: six cycles a line, in which a core could read more. So two panels are
// multiplied side by side. But a core reads one stream of memory faster than two. So a pair of panels is in the
// second-level cache when its turn comes: while one pair is multiplied, the next one is fetched, from its first byte to its
// last.
#pragma once
#include "vector_product.h"

namespace {

#if defined(__AVX512BW__)
constexpr bool IN_REGISTERS = true;
#else
constexpr bool IN_REGISTERS = false;
#endif

constexpr long PAIR = 2;            // panels
constexpr long PAIR_ROWS = 10;      // at once: their sums, two lines and what makes lines stay in 32 registers
constexpr long REGISTER_ROWS = 32;  // with more rows, lines are made once and kept, instead of once for each block

// What a thread fetches while it multiplies a pair of panels.
struct Fetching {
  const uint8_t* next;  // of the pair that comes next: what is not fetched yet
  bool ahead;           // whether the pair itself was not fetched before, as the first one of a product. Its tiles are
                        // then fetched a little ahead of the first block of rows

  Fetching(const CompactWeight& weight, long now, long coming) : next(panel_at(weight, coming)) {
    static thread_local const uint8_t* fetched = nullptr;
    ahead = fetched != panel_at(weight, now);
    fetched = next;
  }

 private:
  static const uint8_t* panel_at(const CompactWeight& weight, long j) {
    return weight.tiles + j * weight.steps * COMPACT_TILE;
  }
};

// The panels of a weight for one of BLOCKS blocks of rows.
template <int BLOCKS>
struct RegisterPanels {
  const CompactWeight& weight;
  Fetching& fetching;
};

// How a product reads NR neighbouring panels, with lines that are made in registers. A tile with an exception is written.
template <int NR, int BLOCKS>
class RegisterRead : public TileRead {
 public:
  RegisterRead(const RegisterPanels<BLOCKS>& from, long j) : fetching_(from.fetching) {
    for (int i = 0; i < NR; i++) panels_[i] = CompactPanel(from.weight, j + i);
  }
  RegisterRead(const RegisterRead&) = delete;

  INLINE_MEMBER Lines<bf16> next() {
    fetch_lines(take_share(), SHARE);
#pragma GCC unroll 2
    for (int i = 0; i < NR; i++) panels_[i].next(room_[i]);
    return {room_[0], TILE_SIZE};
  }

  // acc += the products at the next 32 inputs, of `left` that are left. Where lines cannot be made in registers, it does
  // nothing and returns false.
  template <int MR>
  INLINE_MEMBER bool add_tile(F16 (&acc)[MR][NR], const bf16* x, long row, long left) {
#if defined(__AVX512BW__)
    bool plain = left >= BF16_INPUTS;
    for (int i = 0; i < NR; i++) plain &= panels_[i].plain();
    if (!plain) return false;
    constexpr long GROUPS = TILE_ROWS / COMPACT_LINES;
    const uint8_t* const share = take_share();
    if (BLOCKS > 1) fetch_lines(share, SHARE);
    if (fetching_.ahead)
#pragma GCC unroll 2
      for (int i = 0; i < NR; i++) panels_[i].fetch_ahead();
#pragma GCC unroll 1
    for (long group = 0; group < GROUPS; group++) {
      // One block alone is fast, and its share is large: the share is spread over the tile.
      if (BLOCKS == 1) fetch_lines(share + group * (SHARE / GROUPS * 64), SHARE / GROUPS);
#pragma GCC unroll 2
      for (long half = 0; half < 2; half++) {
        __m512i high[NR];
#pragma GCC unroll 2
        for (int i = 0; i < NR; i++) high[i] = panels_[i].high_bytes(group, half);
#pragma GCC unroll 2
        for (int line = 0; line < 2; line++, x += 2) {
          U16 b[NR];
#pragma GCC unroll 2
          for (int i = 0; i < NR; i++) b[i] = panels_[i].line(group, half, line, high[i]);
          add_words(acc, x, row, b);
        }
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < NR; i++) panels_[i].pass();
    return true;
#else
    return false;
#endif
  }

 private:
  static constexpr long SHARE = PAIR * COMPACT_TILE / 64 / BLOCKS;  // lines of 64 bytes for a tile of one block

  INLINE_MEMBER const uint8_t* take_share() {
    const uint8_t* const share = fetching_.next;
    fetching_.next += SHARE * 64;
    return share;
  }
  INLINE_MEMBER static void fetch_lines(const uint8_t* from, long count) {
#pragma GCC unroll 12
    for (long i = 0; i < count; i++) fetch_weights(from + i * 64);
  }

  CompactPanel panels_[NR];
  Fetching& fetching_;
  alignas(64) bf16 room_[NR][TILE_SIZE];
};

template <int NR, int BLOCKS>
INLINE RegisterRead<NR, BLOCKS> read_panels(const RegisterPanels<BLOCKS>& panels, long j, long) {
  return RegisterRead<NR, BLOCKS>(panels, j);
}

// out = x W^T + bias at the panels of `range`, a pair or the last one alone, for one of BLOCKS blocks of rows: `count`, from
// MR to PAIR_ROWS. Rows of out are `width` apart.
template <int BLOCKS, int MR>
void pair_rows(long count, InputRows<bf16> x, RegisterPanels<BLOCKS> w, const float* bias, float* out, long width,
               PanelRange range) {
  if (count == MR) return panels<false, MR, PAIR>(x, w, bias, out, width, width, range);
  if constexpr (MR < PAIR_ROWS) pair_rows<BLOCKS, MR + 1>(count, x, w, bias, out, width, range);
}

// The same for all m rows, in BLOCKS blocks or more.
template <int BLOCKS = 1>
void pair_blocks(long m, InputRows<bf16> x, const CompactWeight& weight, Fetching fetching, const float* bias, float* out,
                 long width, PanelRange range) {
  if constexpr (BLOCKS * PAIR_ROWS < REGISTER_ROWS)
    if (m > BLOCKS * PAIR_ROWS) return pair_blocks<BLOCKS + 1>(m, x, weight, fetching, bias, out, width, range);
  row_tiles(0, m, PAIR_ROWS, [&](long row, long count) {
    constexpr int LEAST = BLOCKS > 1 ? PAIR_ROWS / 2 : 1;  // rows of a block, as rows are cut evenly
    pair_rows<BLOCKS, LEAST>(count, x.from(row), {weight, fetching}, bias, out + row * width, width, range);
    fetching.ahead = false;
  });
}

// y = x W^T + bias, or += if ADD, of m rows, at most REGISTER_ROWS, and `count` panels: n columns, rows `apart` elements
// apart. With two `parts`, the rows meet the panels [count, 2 * count) too. finish(outputs, of the second part, how many)
// changes the outputs of a task in place before they are written.
template <bool ADD, class Y, class Finish>
void multiply_in_registers(InputRows<bf16> x, const CompactWeight& weight, const float* bias, long count, long parts, Y* y,
                           long m, long n, long apart, int threads, Finish&& finish) {
  parallel_panels(count, PAIR, MAX_PANELS, threads, [&](long first, long last, Turn& turn) {
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    const long width = (last - first) * LANES, part_size = m * width;
    float* const own = own_outputs(parts * part_size);
    const long next_task = following(first, last, count, threads);
    for (long j = first; j < last; j += PAIR)
      for (long part = 0; part < parts; part++) {
        const long here = j + part * count, end = std::min(j + PAIR, last);
        const long coming = part + 1 < parts ? here + count : end < last ? end : next_task;
        pair_blocks(m, x, weight, Fetching(weight, here, coming), bias, own + part * part_size + (j - first) * LANES, width,
                    {here, end + part * count, coming});
      }
    finish(own, own + part_size, part_size);
    if (!kept || turn.mine()) hand_over<ADD>(own, m, width, y, n, apart, first * LANES);
  });
}

template <bool ADD, class Y>
void multiply(InputRows<bf16> x, const CompactWeight& weight, const float* bias, Y* y, long m, long n, int threads) {
  if (!IN_REGISTERS || m > REGISTER_ROWS) return multiply<ADD, bf16, CompactWeight, Y>(x, weight, bias, y, m, n, threads);
  multiply_in_registers<ADD>(x, weight, bias, (n + LANES - 1) / LANES, 1, y, m, n, n, threads,
                             [](float*, const float*, long) {});
}

template <class Y>
void multiply_gated(InputRows<bf16> x, const CompactWeight& weight, const float* bias, Y* y, long m, long n, long apart,
                    bool gelu, int threads) {
  if (!IN_REGISTERS || m > REGISTER_ROWS)
    return multiply_gated<bf16, CompactWeight, Y>(x, weight, bias, y, m, n, apart, gelu, threads);
  multiply_in_registers<false>(x, weight, bias, n / LANES, 2, y, m, n, apart, threads,
                               [=](float* gates, const float* ups, long count) {
                                 for (long i = 0; i < count; i += LANES)
                                   store(gates + i, gate_times_up(load(gates + i), load(ups + i), gelu));
                               });
}

}  // namespace
