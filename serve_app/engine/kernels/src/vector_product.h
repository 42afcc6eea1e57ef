// Products of linear layers on vector registers. A vector holds the sixteen outputs of a panel and takes one or two
// inputs at a time. Every output has one accumulator, which adds in the order of the inputs, whatever block of rows and
// outputs the product computes at once.
#pragma once
#include "pairs.h"
#include "panel_reads.h"
#include "panels.h"
#include "rowwise.h"

namespace {

// Rows of k inputs, `apart` elements apart.
template <class X>
struct InputRows {
  const X* x;
  long k, apart;

  InputRows from(long row) const { return {x + row * apart, k, apart}; }
};

// y = x W^T + bias, or += if ADD, for MR rows of x and NR neighbouring panels. Rows of y are n apart; `left` columns of y
// are left from the first panel on.
//
// Not inlined: GCC has kept sums in memory where it was.
template <bool ADD, int MR, int NR, class X, class Read, class Y>
__attribute__((noinline)) void tile(InputRows<X> x, Read weights, const float* bias, Y* y, long n, long left) {
  F16 acc[MR][NR];
#pragma GCC unroll 20
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = bias ? load(bias + j * LANES) : F16{};
  for (long p = 0; p < x.k;) {
    if (weights.add_tile(acc, x.x + p, x.apart, x.k - p)) {
      p += BF16_INPUTS;
      continue;
    }
    auto [at, apart] = weights.next();
    for (const long end = std::min(x.k, p + weights.inputs(x.k)); p < end; p += 2, at += 2 * LANES) {
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) weights.fetch(at + j * apart);
      add_pair(acc, x.x + p, x.apart, at, apart);
    }
  }
#pragma GCC unroll 20
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

// The rows and panels that a product takes at once, at most: all their sums stay in registers. With 32 registers, six
// weights and an input stay there too. With sixteen, fewer rows leave registers for what makes lines of compact weights,
// and four of several blocks take as long to add up as their weights take to read.
constexpr long BLOCK_ROWS = SUMS < 24 ? 6 : 8, BLOCK_PANELS = 3;
constexpr long COMPACT_ROWS = SUMS < 24 ? 5 : 8, FIRST_ROWS = SUMS < 24 ? 4 : 8;

// The panels [first, last). After them, their reader presumably takes those from `next` on.
struct PanelRange {
  long first, last, next;

  long after(long j) const { return j < last ? j : next; }
};

// The same for a range of panels, NR at a time, with the bias of all panels. y begins at the first one's outputs.
template <bool ADD, int MR, int NR, class X, class Weight, class Y>
void panels(InputRows<X> x, const Weight& w, const float* bias, Y* y, long n, long left, PanelRange range) {
  const auto bias_of = [&](long j) { return bias ? bias + j * LANES : nullptr; };
  long j = range.first;
  for (; j + NR <= range.last; j += NR, y += NR * LANES, left -= NR * LANES)
    tile<ADD, MR, NR>(x, read_panels<NR>(w, j, range.after(j + NR)), bias_of(j), y, n, left);
  for (; j < range.last; j++, y += LANES, left -= LANES)
    tile<ADD, MR, 1>(x, read_panels<1>(w, j, range.after(j + 1)), bias_of(j), y, n, left);
}

// The same for a block of `count` rows.
template <bool ADD, class X, class Weight, class Y>
void rows(long count, InputRows<X> x, const Weight& w, const float* b, Y* y, long n, long left, PanelRange range) {
  switch (count) {
    case 1: return panels<ADD, 1, vectors_at_once(1, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 2: return panels<ADD, 2, vectors_at_once(2, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 3: return panels<ADD, 3, vectors_at_once(3, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 4: return panels<ADD, 4, vectors_at_once(4, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 5: return panels<ADD, 5, vectors_at_once(5, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 6: return panels<ADD, 6, vectors_at_once(6, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 7: return panels<ADD, 7, vectors_at_once(7, BLOCK_PANELS)>(x, w, b, y, n, left, range);
    case 8: return panels<ADD, 8, vectors_at_once(8, BLOCK_PANELS)>(x, w, b, y, n, left, range);
  }
}

// The number of blocks that so many rows are cut into.
inline long blocks_of(long rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

// Calls block(first row, number of rows) for blocks of at most `most` rows that cover the rows [from, to) evenly: 9 rows
// are 4 + 5, not 8 + 1.
template <class F>
void row_tiles(long from, long to, long most, F&& block) {
  const long rows = to - from, count = (rows + most - 1) / most;
  for (long t = 0; t < count; t++) block(from + rows * t / count, rows * (t + 1) / count - rows * t / count);
}

// The panels that a task has at once, at most. `parts`: how often that many.
template <class W>
long panels_of_task(const WholePanels<W>&, long) {
  return MAX_PANELS;
}
inline long panels_of_task(const CompactWeight& weight, long parts) {
  return std::clamp(KEPT_BYTES / (parts * weight.steps * TILE_BYTES), BLOCK_PANELS, MAX_PANELS);
}

// The panels [first, last) of `count`, and, unless `ups` is 0, those `ups` further on. Those from `next` on come after
// them, or none if `next` is `first`.
struct TaskPanels {
  long first, last, count, next, ups;

  TaskPanels(long first, long last, long count, int threads, long ups)
      : first(first), last(last), count(count), next(following(first, last, count, threads)), ups(ups) {}
};

// Calls product(weights, ups, from, to), for rows [from, to) that together are m, at the panels of a task.
template <class W, class F>
void with_panels(const WholePanels<W>& weight, const TaskPanels& task, long m, F&& product) {
  product(weight, task.ups, 0, m);
}

template <class F>
void with_panels(const CompactWeight& weight, const TaskPanels& task, long m, F&& product) {
  if (m <= COMPACT_ROWS) return product(weight, task.ups, 0, m);
  static thread_local Scratch scratch;
  const long count = task.last - task.first, panel = weight.steps * TILE_SIZE;
  const long some = std::min(FIRST_ROWS, m / blocks_of(m)), coming = std::min(count, task.count - task.next);
  const KeptPanels kept{weight, (bf16*)scratch.take((task.ups ? 2 : 1) * count * panel / 2), task.first, count, task.ups};
  product(kept, task.ups, 0, some);
  ComingPanels fetched(weight, task.next, task.next == task.first ? 0 : coming, task.ups, blocks_of(m - some));
  product(ReadyPanels{{kept.room, panel, task.first}, fetched}, task.ups ? count : 0, some, m);
}

// y [m, n] = x W^T + bias, or += if ADD, of m rows x of an even number of inputs. bias: padded to whole panels, or null.
template <bool ADD, class X, class Weight, class Y>
void multiply(InputRows<X> x, const Weight& weight, const float* bias, Y* y, long m, long n, int threads) {
  const long panels = (n + LANES - 1) / LANES;
  parallel_panels(panels, BLOCK_PANELS, panels_of_task(weight, 1), threads, [&](long first, long last, Turn& turn) {
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    const long width = (last - first) * LANES;
    float* const own = kept ? own_outputs(m * width) : nullptr;
    const TaskPanels task(first, last, panels, threads, 0);
    with_panels(weight, task, m, [&](const auto& w, long, long from, long to) {
      row_tiles(from, to, BLOCK_ROWS, [&](long row, long count) {
        const PanelRange range = {first, last, row + count < to ? first : task.next};
        if (kept)
          rows<false>(count, x.from(row), w, bias, own + row * width, width, width, range);
        else
          rows<ADD>(count, x.from(row), w, bias, y + row * n + first * LANES, n, n - first * LANES, range);
      });
    });
    if (kept && turn.mine()) hand_over<ADD>(own, m, width, y, n, n, first * LANES);
  });
}

// y [m, n], rows `apart` elements apart, = act(x G^T) * (x U^T): the first n outputs of the weight are gates G, the other
// n are U. n is a multiple of sixteen. Gates are applied tile by tile, while both factors are in the first-level cache.
template <class X, class Weight, class Y>
void multiply_gated(InputRows<X> x, const Weight& weight, const float* bias, Y* y, long m, long n, long apart, bool gelu,
                    int threads) {
  const long count = n / LANES;
  parallel_panels(count, BLOCK_PANELS, panels_of_task(weight, 2), threads, [&](long first, long last, Turn& turn) {
    alignas(64) float both[2][BLOCK_ROWS * MAX_PANELS * LANES];
    const long width = (last - first) * LANES;
    const bool kept = m <= KEPT_ROWS;
    if (!kept && !turn.mine()) return;
    float* const own = kept ? own_outputs(m * width) : nullptr;
    const TaskPanels task(first, last, count, threads, count);
    with_panels(weight, task, m, [&](const auto& w, long ups, long some, long more) {
      row_tiles(some, more, BLOCK_ROWS, [&](long row, long size) {
        for (long up = 0; up < 2; up++) {
          const long next = up == 0 ? first + ups : row + size < more ? first : task.next;
          const float* const b = bias ? bias + up * (count - ups) * LANES : nullptr;  // by the panels of w
          rows<false>(size, x.from(row), w, b, both[up], width, width, {first + up * ups, last + up * ups, next});
        }
        for (long r = 0; r < size; r++)
          for (long i = 0; i < width; i += LANES) {
            const F16 v = gate_times_up(load(both[0] + r * width + i), load(both[1] + r * width + i), gelu);
            if (kept)
              store(own + (row + r) * width + i, v);
            else
              store(y + (row + r) * apart + first * LANES + i, v);
          }
      });
    });
    if (kept && turn.mine()) hand_over<false>(own, m, width, y, n, apart, first * LANES);
  });
}

}  // namespace
