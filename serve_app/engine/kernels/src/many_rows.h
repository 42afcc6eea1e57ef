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
constexpr long TASKS = 6;                                              // for each thread, to share work evenly

constexpr long GROUPED = 4;  // pairs: eight lines of a row of y are written at once

// The bias [n] at the sixteen outputs of a panel; zeros if there is no bias.
INLINE F16 bias_at(const float* bias, long panel) { return bias ? load(bias + panel * LANES) : F16{}; }

struct PanelPair {
  const bf16 *w, *v;
};

// How threads share a product of m rows and `pairs` pairs of panels: by chunks of `rows` rows and ranges of pairs.
struct Grid {
  long chunks, ranges, rows;

  Grid(long m, long steps, long pairs, int threads) {
    const long blocks = (m + BLOCK - 1) / BLOCK;
    const long most = std::max(1L, CHUNK_BYTES / (steps * 2 * TILE_SIZE * (long)sizeof(bf16)));
    chunks = (blocks + most - 1) / most;
    ranges = std::clamp((TASKS * threads + chunks - 1) / chunks, 1L, pairs);
    if (chunks * ranges < 2L * threads) chunks = std::min(blocks, (2L * threads + ranges - 1) / ranges);
    rows = (blocks + chunks - 1) / chunks * BLOCK;
    chunks = (m + rows - 1) / rows;
  }
};

// Fetches a pair of panels into the second-level cache, `lines` lines of each at a time.
struct Fetch {
  const char* at;
  long apart, lines;  // bytes between the panels

  Fetch(PanelPair pair, long lines) : at((const char*)pair.w), apart((const char*)pair.v - at), lines(lines) {}
  void some() {
    for (const char* const end = at + lines * 64; at < end; at += 64) {
      __builtin_prefetch(at, 0, 2);
      __builtin_prefetch(at + apart, 0, 2);
    }
  }
};

// The rows of a block that are to be finished: `left` rows from row `row` on, with the sums of `pairs` pairs of panels.
struct Unfinished {
  const float* sums = nullptr;
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
  return [finish](const float* sums, long apart, long row, long pair, long pairs) {
    for (long i = 0; i < pairs; i++) finish(sums + i * apart, row, pair + i);
  };
}

// Multiplies x, m rows as tiles of `steps` steps, by pairs of panels; pair_at(i) is pair i. Calls finish(sums, apart, row,
// pair, pairs) for every row and for up to GROUP pairs at once, with 32 sums of each pair, `apart` floats apart. A task has
// a finish of its own, which gets all rows of a group in order. Groups have whole units of `unit` pairs, which divides
// GROUP and `pairs`.
template <long GROUP, class PairAt, class Finish>
void multiply_many(const bf16* x, long m, long steps, long pairs, long unit, int threads, PairAt&& pair_at,
                   const Finish& shared) {
  const Grid grid(m, steps, pairs / unit, threads);
  parallel(grid.chunks * grid.ranges, threads, [&](long task) {
    const long range = task % grid.ranges, from = task / grid.ranges * grid.rows, to = std::min(m, from + grid.rows);
    const long units = pairs / unit;
    const long first = units * range / grid.ranges * unit, last = units * (range + 1) / grid.ranges * unit;
    const long blocks = (to - from + BLOCK - 1) / BLOCK, pieces = (steps + PIECE - 1) / PIECE;
    const long lines = (TILE_SIZE * sizeof(bf16) / 64 + blocks - 1) / blocks;
    const long apart = std::max(blocks, 2L) * BLOCK_SUMS;
    float* const sums = own_outputs(GROUP * apart);
    const TileScope scope(TILE_ROWS);
    Finish finish = shared;
    Unfinished unfinished;
    long turn = 0;  // where sums stay for one block alone, blocks take turns in two places
    for (long pair = first; pair < last; pair++) {
      const long group = first + (pair - first) / GROUP * GROUP, grouped = pair + 1 - group;
      const bool complete = grouped == GROUP || pair + 1 == last;
      const auto [w, v] = pair_at(pair);
      Fetch next(pair_at(std::min(pair + 1, pairs - 1)), lines);
      for (long piece = 0; piece < pieces; piece++) {
        const long step = steps * piece / pieces, count = steps * (piece + 1) / pieces - step, at = step * TILE_SIZE;
        const long finished = (BLOCK + count - 1) / count;  // rows at each step
        for (long row = from; row < to; row += BLOCK) {
          const long place = pieces > 1 || GROUP > 1 ? (row - from) / BLOCK : turn ^= 1;
          const bf16* const high = x + row * steps * BF16_INPUTS + at;
          const bf16* const low = to - row > TILE_ROWS ? high + steps * TILE_SIZE : high;
          float* const here = sums + (pair - group) * apart + place * BLOCK_SUMS;
          const auto between = [&] {
            next.some();
            unfinished.some(finished, finish);
          };
          piece ? tile_block<true>({high, low, w + at, v + at, count}, here, between)
                : tile_block<false>({high, low, w + at, v + at, count}, here, between);
          if (complete && piece + 1 == pieces)
            unfinished = {sums + place * BLOCK_SUMS, apart, std::min(BLOCK, to - row), row, group, grouped};
        }
      }
    }
    unfinished.some(BLOCK, finish);
  });
}

}  // namespace
