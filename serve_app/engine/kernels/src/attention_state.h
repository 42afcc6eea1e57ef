// The state of an online softmax over the keys of a sequence. Keys are summed in parts.
#pragma once
#include <algorithm>
#include <cmath>

#include "cache.h"

namespace {

constexpr float INF = __builtin_inff();
constexpr long PART = 1024;  // keys of a part: parts have sums of their own, merged in order, so threads may share them
constexpr long ROWS = 96;    // (token, head) rows whose sums are computed at once, at most; a multiple of sixteen

// The sums of some rows over the keys seen so far. Memory is for a multiple of sixteen rows.
struct State {
  float* out;    // [rows, value_pad]: values weighted by exp(score - top), not yet divided by the total
  float* top;    // [rows]: the largest score
  float* total;  // [rows, LANES]: the sum of the weights, of every sixteenth key in a lane

  void reset(long rows, long width) const {
    std::fill(out, out + rows * width, 0.f);
    std::fill(top, top + rows, -INF);
    std::fill(total, total + rows * LANES, 0.f);
  }

  // Adds the sums of `other`, which are those of later keys.
  void merge(const State& other, long rows, long width) const {
    for (long r = 0; r < rows; r++) {
      if (other.top[r] == -INF) continue;
      const float m = std::max(top[r], other.top[r]);
      const float mine = std::exp(top[r] - m), theirs = std::exp(other.top[r] - m);
      const auto add = [&](float* to, const float* from) { store(to, load(to) * mine + load(from) * theirs); };
      for (long d = r * width; d < (r + 1) * width; d += LANES) add(out + d, other.out + d);
      add(total + r * LANES, other.total + r * LANES);
      top[r] = m;
    }
  }

  // Becomes the same as `other`.
  void copy(const State& other, long rows, long width) const {
    std::copy(other.out, other.out + rows * width, out);
    std::copy(other.top, other.top + rows, top);
    std::copy(other.total, other.total + rows * LANES, total);
  }

  // The state of the rows from `row` on.
  State from(long row, long width) const { return {out + row * width, top + row, total + row * LANES}; }
};

// Floats of the state of one row.
long state_row(const Cache& c) { return c.value_pad + 1 + LANES; }

// A state of `rows` rows, a multiple of sixteen, in the memory at p: rows * state_row floats.
State state_at(float* p, long rows) { return {p + rows * (1 + LANES), p, p + rows}; }

}  // namespace
