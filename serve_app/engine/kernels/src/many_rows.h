// Products of many rows on tile registers, blocked for the caches.
//
// A task has a chunk of rows, which stay in the second-level cache, and a range of pairs of panels. It takes one pair
// after another, and cuts it into pieces of few inputs: a piece stays in the first-level cache while it meets all rows of
// the chunk. Meanwhile the next pair is fetched. Sums between two pieces are float32 in memory, so every output adds up
// its steps in the order of the inputs, as in a product of few rows. What becomes of the sums of a block is done between
// the steps of the next block, because vector instructions run beside the tile registers.
#pragma once
#include "tiles.h"

namespace {

constexpr long BLOCK = 2 * TILE_ROWS, BLOCK_SUMS = BLOCK * 2 * LANES;  // rows that the registers take at once
constexpr long CHUNK_BYTES = 3 << 18;                                  // of rows in the second-level cache
constexpr long PIECE = 9;                                              // steps: 9 KiB of each panel
constexpr long TASKS = 3;                                              // for each thread, to share work evenly

constexpr long GROUPED = 4;  // pairs: eight lines of a row of y are written at once

// The bias [n] at the sixteen outputs of a panel; zeros if there is no bias.
INLINE F16 bias_at(const float* bias, long panel) { return bias ? load(bias + panel * LANES) : F16{}; }

// Rows as tiles of one type: sixteen rows are `steps` tiles, `apart` bytes after the sixteen rows before.
struct ManyRows {
  const char* tiles;
  long count, steps, apart;

  explicit ManyRows(const bf16* x, long count, long steps)
      : ManyRows((const char*)x, count, steps, steps * TILE_BYTES) {}
  ManyRows(const char* tiles, long count, long steps, long apart)
      : tiles(tiles), count(count), steps(steps), apart(apart) {}
};

// How threads share a product of m rows and `pairs` pairs of panels: by chunks of `rows` rows and ranges of pairs.
struct Grid {
  long chunks, ranges, rows;

  Grid(long m, long steps, long pairs, int threads) {
    const long blocks = (m + BLOCK - 1) / BLOCK;
    const long most = std::max(1L, CHUNK_BYTES / (steps * 2 * TILE_BYTES));
    chunks = (blocks + most - 1) / most;
    const long wanted = threads > 1 ? TASKS * threads : 1, least = threads > 1 ? 2 * threads : 1;  // tasks
    ranges = std::clamp((wanted + chunks - 1) / chunks, 1L, pairs);
    if (chunks * ranges < least) chunks = std::min(blocks, (least + ranges - 1) / ranges);
    rows = (blocks + chunks - 1) / chunks * BLOCK;
    chunks = (m + rows - 1) / rows;
  }
};

// The rows of a block that are to be finished: `left` rows from row `row` on, with the sums of `pairs` pairs of panels.
struct Unfinished {
  float* sums = nullptr;
  long apart = 0, left = 0, row = 0, pair = 0, pairs = 0;  // sums of two pairs are `apart` floats apart

  template <class Finish>
  void some(long count, Finish&& finish) {
    for (count = std::min(count, left), left -= count; count > 0; count--, sums += 2 * LANES, row++)
      finish(sums, apart, row, pair, pairs);
  }
};

// The finish of a product that treats every pair of panels alone, by finish(sums, row, pair).
template <class Finish>
auto each_pair(Finish finish) {
  return [finish](float* sums, long apart, long row, long pair, long pairs) {
    for (long i = 0; i < pairs; i++) finish(sums + i * apart, row, pair + i);
  };
}

// Multiplies x by pairs of panels, in steps of `Step`; see FetchedPanels for `panels`. Calls finish(sums, apart, row, pair,
// pairs) for every row and for up to GROUP pairs at once, with 32 sums of each pair, `apart` floats apart. A task has
// panels and a finish of its own; the finish gets all rows of a group in order, and may change the sums. Groups have
// whole units of `unit` pairs, which divides GROUP and `pairs`.
template <class Step, long GROUP, class Panels, class Finish>
void multiply_many(const ManyRows& x, long pairs, long unit, int threads, const Panels& shared_panels,
                   const Finish& shared_finish) {
  const Grid grid(x.count, x.steps, pairs / unit, threads);
  parallel(grid.chunks * grid.ranges, threads, [&](long task) {
    const long range = task % grid.ranges, from = task / grid.ranges * grid.rows;
    const long to = std::min(x.count, from + grid.rows);
    const long units = pairs / unit;
    const long first = units * range / grid.ranges * unit, last = units * (range + 1) / grid.ranges * unit;
    const long blocks = (to - from + BLOCK - 1) / BLOCK, pieces = (x.steps + PIECE - 1) / PIECE;
    const long apart = std::max(blocks, 2L) * BLOCK_SUMS;
    float* const sums = own_outputs(GROUP * apart);
    const TileScope scope(TILE_ROWS);
    Panels panels = shared_panels;
    Finish finish = shared_finish;
    Unfinished unfinished;
    long turn = 0;  // where sums stay for one block alone, blocks take turns in two places
    for (long pair = first; pair < last; pair++) {
      const long group = first + (pair - first) / GROUP * GROUP, grouped = pair + 1 - group;
      const bool complete = grouped == GROUP || pair + 1 == last;
      const auto [w, v] = panels.turn_to(pair, pair + 1 < last ? pair + 1 : -1, blocks);
      for (long piece = 0; piece < pieces; piece++) {
        const long step = x.steps * piece / pieces, count = x.steps * (piece + 1) / pieces - step;
        const long at = step * TILE_BYTES;
        const long finished = (BLOCK + count - 1) / count;  // rows at each step
        for (long row = from; row < to; row += BLOCK) {
          const long place = pieces > 1 || GROUP > 1 ? (row - from) / BLOCK : turn ^= 1;
          const char* const high = x.tiles + row / TILE_ROWS * x.apart + at;
          const char* const low = to - row > TILE_ROWS ? high + x.apart : high;
          float* const here = sums + (pair - group) * apart + place * BLOCK_SUMS;
          const auto between = [&] {
            panels.ahead();
            unfinished.some(finished, finish);
          };
          piece ? tile_block<Step, true>({high, low, w + at, v + at, count}, here, between)
                : tile_block<Step, false>({high, low, w + at, v + at, count}, here, between);
          if (complete && piece + 1 == pieces)
            unfinished = {sums + place * BLOCK_SUMS, apart, std::min(BLOCK, to - row), row, group, grouped};
        }
      }
    }
    unfinished.some(BLOCK, finish);
  });
}

}  // namespace
