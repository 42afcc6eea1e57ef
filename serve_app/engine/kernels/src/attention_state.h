// The state of an online softmax over the keys of a sequence. Keys are summed in parts.
#pragma once
#include <algorithm>
#include <cmath>

#include "cache.h"

namespace {

constexpr float INF = __builtin_inff();
constexpr long PART = 1024;  // keys of a part: parts have sums of their own, merged in order, so threads may share them
constexpr long ROWS = 96;    // (token, head) rows of one task at most, a multiple of 16

// The sums of some rows over the keys seen so far.
struct State {
  float* out;    // [rows, value_pad]: values weighted by exp(score - top), not yet divided by the total
  float* top;    // [rows]: the largest score
  float* total;  // [rows]: the sum of the weights

  void reset(long rows, long width) {
    std::fill(out, out + rows * width, 0.f);
    std::fill(top, top + rows, -INF);
    std::fill(total, total + rows, 0.f);
  }

  // Adds the sums of `other`, which are those of later keys.
  void merge(const State& other, long rows, long width) {
    for (long r = 0; r < rows; r++) {
      if (other.top[r] == -INF) continue;
      const float m = std::max(top[r], other.top[r]);
      const float mine = std::exp(top[r] - m), theirs = std::exp(other.top[r] - m);
      for (long d = 0; d < width; d++)
        out[r * width + d] = out[r * width + d] * mine + other.out[r * width + d] * theirs;
      total[r] = total[r] * mine + other.total[r] * theirs;
      top[r] = m;
    }
  }
};

// Floats of the state of one row.
long state_row(const Cache& c) { return c.value_pad + 2; }

// A state of ROWS rows in the memory at p, ROWS * state_row floats.
State state_at(float* p) { return {p + 2 * ROWS, p, p + ROWS}; }

}  // namespace
