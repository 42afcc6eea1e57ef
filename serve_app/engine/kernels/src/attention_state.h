// The state of an online softmax over a sequence's keys, which are summed in parts.
#pragma once
#include <algorithm>
#include <cmath>

#include "cache.h"

namespace {

constexpr float INF = __builtin_inff();
constexpr long PART = 1024;  // keys summed apart from others, then merged in order: threads may share them
constexpr long ROWS = 96;    // (token, head) rows that one task works on, a multiple of 16

// out [rows, value_pad] unnormalised, with the maximum and the sum of each row.
struct State {
  float* out;
  float* top;
  float* total;

  void reset(long rows, long width) {
    std::fill(out, out + rows * width, 0.f);
    std::fill(top, top + rows, -INF);
    std::fill(total, total + rows, 0.f);
  }

  // Fold in what `other` summed over later keys.
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

// Floats of a row's state.
long state_row(const Cache& c) { return c.value_pad + 2; }

State state_at(float* p) { return {p + 2 * ROWS, p, p + ROWS}; }

}  // namespace
