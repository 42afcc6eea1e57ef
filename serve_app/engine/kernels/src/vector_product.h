// Products of linear layers on vector registers. A vector holds the sixteen outputs of a panel and takes one or two
// inputs at a time. Every output has one accumulator, which adds in the order of the inputs, whatever block of rows and
// outputs the product computes at once.
#pragma once
#include "panels.h"
#include "rowwise.h"

namespace {

// The weights of sixteen outputs at two neighbouring inputs.
struct Pair {
  F16 even, odd;
};

INLINE Pair load_pair(const float* p) { return {load(p), load(p + LANES)}; }

// The same in bfloat16: the even input in the low half of each lane, the odd input in the high half.
INLINE U16 load_words(const bf16* p) {
  U16 words;
  memcpy(&words, p, sizeof words);
  return words;
}

INLINE Pair load_pair(const bf16* p) {
  const U16 words = load_words(p);
  return {(F16)(words << 16), (F16)(words & 0xffff0000u)};
}

constexpr long AHEAD = 1024;  // bytes of a panel fetched ahead: the hardware fetches ahead only within a page

// acc += the products of MR rows of x, k apart, with NR panels, `panel` apart, at one pair of inputs.
template <int MR, int NR, class W>
INLINE void add_pair(F16 (&acc)[MR][NR], const float* x, long k, const W* w, long panel) {
  Pair b[NR];
#pragma GCC unroll 4
  for (int j = 0; j < NR; j++) b[j] = load_pair(w + j * panel);
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    const F16 a = splat(x[i * k]);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].even;
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    const F16 a = splat(x[i * k + 1]);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].odd;
  }
}

template <int MR, int NR>
INLINE void add_pair(F16 (&acc)[MR][NR], const bf16* x, long k, const bf16* w, long panel) {
  U16 b[NR];
#pragma GCC unroll 4
  for (int j = 0; j < NR; j++) b[j] = load_words(w + j * panel);
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    const U16 a = splat_pair(x + i * k);
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = add_products(acc[i][j], a, b[j]);
  }
}

// y = x W^T + bias, or += if ADD, for MR rows of x, k apart, and NR neighbouring panels. Rows of y are n apart; `left`
// columns of y are left from the first panel on.
template <bool ADD, int MR, int NR, class X, class W, class Y>
void tile(const X* x, long k, const W* w, const float* bias, Y* y, long n, long left) {
  const long panel = panel_size(w, k);
  F16 acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = bias ? load(bias + j * LANES) : F16{};
  for (long p = 0; p < k; p += 2) {
    const W* const at = w + p * LANES;
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) __builtin_prefetch((const char*)(at + j * panel) + AHEAD, 0, 3);
    add_pair(acc, x + p, k, at, panel);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      const long some = std::min(LANES, left - j * LANES);
      Y* const at = y + i * n + j * LANES;
      if (some == LANES)
        store(at, ADD ? load(at) + acc[i][j] : acc[i][j]);
      else if (some > 0)
        store_some(at, ADD ? load_some(at, some) + acc[i][j] : acc[i][j], some);
    }
}

constexpr int MAX_ROWS = 8;  // with three panels: 24 accumulators, six weights and one input in 32 registers
constexpr long GROUP = 3;

// The same for the panels [first, last).
template <bool ADD, int MR, class X, class W, class Y>
void panels(const X* x, long k, const W* w, const float* bias, Y* y, long n, long first, long last) {
  const long panel = panel_size(w, k);
  long j = first;
  for (; j + GROUP <= last; j += GROUP)
    tile<ADD, MR, GROUP>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
  for (; j < last; j++)
    tile<ADD, MR, 1>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
}

// The same for `count` rows, 1 to MAX_ROWS.
template <bool ADD, class X, class W, class Y>
void rows(long count, const X* x, long k, const W* w, const float* b, Y* y, long n, long first, long last) {
  switch (count) {
    case 1: return panels<ADD, 1>(x, k, w, b, y, n, first, last);
    case 2: return panels<ADD, 2>(x, k, w, b, y, n, first, last);
    case 3: return panels<ADD, 3>(x, k, w, b, y, n, first, last);
    case 4: return panels<ADD, 4>(x, k, w, b, y, n, first, last);
    case 5: return panels<ADD, 5>(x, k, w, b, y, n, first, last);
    case 6: return panels<ADD, 6>(x, k, w, b, y, n, first, last);
    case 7: return panels<ADD, 7>(x, k, w, b, y, n, first, last);
    case 8: return panels<ADD, 8>(x, k, w, b, y, n, first, last);
  }
}

// Calls tile(first row, number of rows) for tiles of at most MAX_ROWS that cover m rows evenly: 9 rows are 4 + 5, not
// 8 + 1.
template <class F>
void row_tiles(long m, F&& tile) {
  const long count = (m + MAX_ROWS - 1) / MAX_ROWS;
  for (long t = 0; t < count; t++) tile(m * t / count, m * (t + 1) / count - m * t / count);
}

// y [m, n] = x W^T + bias, or += if ADD, of x [m, k] with an even k. bias: padded to whole panels, or null.
template <bool ADD, class X, class W, class Y>
void multiply(const X* x, const W* w, const float* bias, Y* y, long m, long n, long k, int threads) {
  const long panel = panel_size(w, k);
  parallel_panels((n + LANES - 1) / LANES, GROUP, threads, [&](long first, long last, Turn& turn) {
    if (m > KEPT_ROWS) {
      if (!turn.mine()) return;
      return row_tiles(m, [&](long row, long count) {
        rows<ADD>(count, x + row * k, k, w, bias, y + row * n, n, first, last);
      });
    }
    const long width = (last - first) * LANES;
    float* const own = own_outputs(m * width);
    row_tiles(m, [&](long row, long count) {
      rows<false>(count, x + row * k, k, w + first * panel, bias ? bias + first * LANES : nullptr, own + row * width,
                  width, 0, last - first);
    });
    if (turn.mine()) hand_over<ADD>(own, m, width, y, n, first * LANES);
  });
}

// y [m, n] = act(x G^T) * (x U^T): the first n outputs of the weight are gates G, the other n are U. n is a multiple of
// sixteen. Gates are applied tile by tile, while both factors are in the first-level cache.
template <class X, class W>
void multiply_gated(const X* x, const W* w, const float* bias, float* y, long m, long n, long k, bool gelu,
                    int threads) {
  const long count = n / LANES, panel = panel_size(w, k);
  parallel_panels(count, GROUP, threads, [&](long first, long last, Turn& turn) {
    alignas(64) float both[2][MAX_ROWS * MAX_PANELS * LANES];
    const long width = (last - first) * LANES;
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    float* const to = kept ? own_outputs(m * width) : y + first * LANES;
    const long stride = kept ? width : n;
    row_tiles(m, [&](long row, long size) {
      for (long up = 0; up < 2; up++) {
        const long from = first + up * count;
        rows<false>(size, x + row * k, k, w + from * panel, bias ? bias + from * LANES : nullptr, both[up], width, 0,
                    last - first);
      }
      for (long r = 0; r < size; r++)
        for (long i = 0; i < width; i += LANES)
          store(to + (row + r) * stride + i,
                gate_times_up(load(both[0] + r * width + i), load(both[1] + r * width + i), gelu));
    });
    if (kept && turn.mine()) hand_over<false>(to, m, width, y, n, first * LANES);
  });
}

}  // namespace
