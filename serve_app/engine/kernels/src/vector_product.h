// Products of linear layers on vector registers. A vector holds the sixteen outputs of a panel and takes one or two
// inputs at a time. Every output has one accumulator, which adds in the order of the inputs, whatever block of rows and
// outputs the product computes at once.
#pragma once
#include "compact.h"
#include "pairs.h"
#include "panels.h"
#include "rowwise.h"

namespace {

constexpr long AHEAD = 1024;  // bytes of a panel fetched ahead: the hardware fetches ahead only within a page

// Weights at neighbouring inputs, of panels that lie `apart` elements apart.
template <class W>
struct Lines {
  const W* first;
  long apart;
};

// How a product reads NR neighbouring panels. It asks for the next lines, at `inputs(k)` inputs of k, until it has had all.
template <class W>
struct WholeRead {
  const W* w;
  long apart;

  static long inputs(long k) { return k; }
  Lines<W> next() const { return {w, apart}; }
  INLINE void fetch(const W* at) { __builtin_prefetch((const char*)at + AHEAD, 0, 3); }
};

// Compact panels, widened tile by tile: to a place of the reader's own, or to where all tiles of a panel stay for others.
template <int NR>
class CompactRead {
 public:
  explicit CompactRead(const CompactWeight& weight, long j) : CompactRead(weight, j, nullptr) {}
  CompactRead(const CompactWeight& weight, long j, bf16* kept)
      : at_(kept ? kept : room_[0]), step_(kept ? TILE_SIZE : 0), apart_(kept ? weight.steps * TILE_SIZE : TILE_SIZE) {
    for (int i = 0; i < NR; i++) panels_[i] = CompactPanel(weight, j + i, NR);
  }
  CompactRead(const CompactRead&) = delete;

  static long inputs(long) { return BF16_INPUTS; }
  INLINE_MEMBER Lines<bf16> next() {
    bf16* const here = at_;
#pragma GCC unroll 4
    for (int i = 0; i < NR; i++) panels_[i].next(here + i * apart_);
    at_ += step_;
    return {here, apart_};
  }
  INLINE_MEMBER void fetch(const bf16*) {}

 private:
  CompactPanel panels_[NR];
  bf16* at_;
  const long step_, apart_;
  alignas(64) bf16 room_[NR][TILE_SIZE];
};

// Compact panels that the first rows widen for all others: `count` from `first` on, then `count` from `first + ups` on.
struct KeptPanels {
  const CompactWeight& weight;
  bf16* room;
  long first, count, ups;

  bf16* at(long j) const {
    const long place = j < first + count ? j - first : j - first - ups + count;
    return room + place * weight.steps * TILE_SIZE;
  }
};

template <int NR, class W>
INLINE WholeRead<W> read_panels(const WholePanels<W>& weight, long j) {
  return {weight.at(j), weight.panel};
}

template <int NR>
INLINE CompactRead<NR> read_panels(const CompactWeight& weight, long j) {
  return CompactRead<NR>(weight, j);
}

template <int NR>
INLINE CompactRead<NR> read_panels(const KeptPanels& kept, long j) {
  return CompactRead<NR>(kept.weight, j, kept.at(j));
}

// y = x W^T + bias, or += if ADD, for MR rows of x, k apart, and NR neighbouring panels. Rows of y are n apart; `left`
// columns of y are left from the first panel on.
template <bool ADD, int MR, int NR, class X, class Read, class Y>
void tile(const X* x, long k, Read weights, const float* bias, Y* y, long n, long left) {
  F16 acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = bias ? load(bias + j * LANES) : F16{};
  for (long p = 0; p < k;) {
    auto [at, apart] = weights.next();
    for (const long end = std::min(k, p + weights.inputs(k)); p < end; p += 2, at += 2 * LANES) {
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) weights.fetch(at + j * apart);
      add_pair(acc, x + p, k, at, apart);
    }
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

// The same for the panels [first, last), with the bias of all panels. y begins at the first one's outputs.
template <bool ADD, int MR, class X, class Weight, class Y>
void panels(const X* x, long k, const Weight& w, const float* bias, Y* y, long n, long left, long first, long last) {
  const auto bias_of = [&](long j) { return bias ? bias + j * LANES : nullptr; };
  long j = first;
  for (; j + GROUP <= last; j += GROUP, y += GROUP * LANES, left -= GROUP * LANES)
    tile<ADD, MR, GROUP>(x, k, read_panels<GROUP>(w, j), bias_of(j), y, n, left);
  for (; j < last; j++, y += LANES, left -= LANES) tile<ADD, MR, 1>(x, k, read_panels<1>(w, j), bias_of(j), y, n, left);
}

// The same for `count` rows, 1 to MAX_ROWS.
template <bool ADD, class X, class Weight, class Y>
void rows(long count, const X* x, long k, const Weight& w, const float* b, Y* y, long n, long left, long first,
          long last) {
  switch (count) {
    case 1: return panels<ADD, 1>(x, k, w, b, y, n, left, first, last);
    case 2: return panels<ADD, 2>(x, k, w, b, y, n, left, first, last);
    case 3: return panels<ADD, 3>(x, k, w, b, y, n, left, first, last);
    case 4: return panels<ADD, 4>(x, k, w, b, y, n, left, first, last);
    case 5: return panels<ADD, 5>(x, k, w, b, y, n, left, first, last);
    case 6: return panels<ADD, 6>(x, k, w, b, y, n, left, first, last);
    case 7: return panels<ADD, 7>(x, k, w, b, y, n, left, first, last);
    case 8: return panels<ADD, 8>(x, k, w, b, y, n, left, first, last);
  }
}

// Calls tile(first row, number of rows) for tiles of at most MAX_ROWS that cover the rows [from, to) evenly: 9 rows are
// 4 + 5, not 8 + 1.
template <class F>
void row_tiles(long from, long to, F&& tile) {
  const long rows = to - from, count = (rows + MAX_ROWS - 1) / MAX_ROWS;
  for (long t = 0; t < count; t++) tile(from + rows * t / count, rows * (t + 1) / count - rows * t / count);
}

// Calls product(weights, ups, from, to), for rows [from, to) that together are m, at the panels [first, last) and, unless
// `ups` is 0, at those `ups` further on.
template <class W, class F>
void with_panels(const WholePanels<W>& weight, long, long, long ups, long m, F&& product) {
  product(weight, ups, 0, m);
}

template <class F>
void with_panels(const CompactWeight& weight, long first, long last, long ups, long m, F&& product) {
  if (m <= MAX_ROWS) return product(weight, ups, 0, m);
  static thread_local Scratch scratch;
  const long count = last - first, panel = weight.steps * TILE_SIZE, some = m / ((m + MAX_ROWS - 1) / MAX_ROWS);
  const KeptPanels kept{weight, (bf16*)scratch.take((ups ? 2 : 1) * count * panel / 2), first, count, ups};
  product(kept, ups, 0, some);
  product(WholePanels<bf16>{kept.room, panel, first}, ups ? count : 0, some, m);
}

// y [m, n] = x W^T + bias, or += if ADD, of x [m, k] with an even k. bias: padded to whole panels, or null.
template <bool ADD, class X, class Weight, class Y>
void multiply(const X* x, const Weight& weight, const float* bias, Y* y, long m, long n, long k, int threads) {
  parallel_panels((n + LANES - 1) / LANES, GROUP, threads, [&](long first, long last, Turn& turn) {
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    const long width = (last - first) * LANES;
    float* const own = kept ? own_outputs(m * width) : nullptr;
    with_panels(weight, first, last, 0, m, [&](const auto& w, long, long from, long to) {
      row_tiles(from, to, [&](long row, long count) {
        if (kept)
          rows<false>(count, x + row * k, k, w, bias, own + row * width, width, width, first, last);
        else
          rows<ADD>(count, x + row * k, k, w, bias, y + row * n + first * LANES, n, n - first * LANES, first, last);
      });
    });
    if (kept && turn.mine()) hand_over<ADD>(own, m, width, y, n, first * LANES);
  });
}

// y [m, n] = act(x G^T) * (x U^T): the first n outputs of the weight are gates G, the other n are U. n is a multiple of
// sixteen. Gates are applied tile by tile, while both factors are in the first-level cache.
template <class X, class Weight>
void multiply_gated(const X* x, const Weight& weight, const float* bias, float* y, long m, long n, long k, bool gelu,
                    int threads) {
  const long count = n / LANES;
  parallel_panels(count, GROUP, threads, [&](long first, long last, Turn& turn) {
    alignas(64) float both[2][MAX_ROWS * MAX_PANELS * LANES];
    const long width = (last - first) * LANES;
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    float* const to = kept ? own_outputs(m * width) : y + first * LANES;
    const long stride = kept ? width : n;
    with_panels(weight, first, last, count, m, [&](const auto& w, long ups, long some, long more) {
      row_tiles(some, more, [&](long row, long size) {
        for (long up = 0; up < 2; up++) {
          const float* const b = bias ? bias + up * (count - ups) * LANES : nullptr;  // by the panels of w
          rows<false>(size, x + row * k, k, w, b, both[up], width, width, first + up * ups, last + up * ups);
        }
        for (long r = 0; r < size; r++)
          for (long i = 0; i < width; i += LANES)
            store(to + (row + r) * stride + i,
                  gate_times_up(load(both[0] + r * width + i), load(both[1] + r * width + i), gelu));
      });
    });
    if (kept && turn.mine()) hand_over<false>(to, m, width, y, n, first * LANES);
  });
}

}  // namespace
