// Packed weights: panels of sixteen outputs, zero-padded. float32 [N/16][K/2][2][16] with K rounded up to 2; bfloat16
// [N/16][K/2][16][2] with K rounded up to 32, so that 64 bytes carry sixteen outputs at two inputs, and sixteen such
// lines are what an AMX tile wants.
#pragma once
#include <algorithm>

#include "pool.h"
#include "vec.h"

constexpr long BF16_INPUTS = 32;

INLINE long padded_inputs(long k, bool wide) {
  const long unit = wide ? 2 : BF16_INPUTS;
  return (k + unit - 1) / unit * unit;
}

INLINE long panel_size(const float*, long k) { return padded_inputs(k, true) * LANES; }
INLINE long panel_size(const bf16*, long k) { return padded_inputs(k, false) * LANES; }

// task(first, last) over ranges of `count` panels: a few groups of `group` each, at most MAX_PANELS. A task's weights
// stay in the second-level cache over all its rows.
constexpr long MAX_PANELS = 12;

template <class F>
void parallel_panels(long count, long group, int threads, F&& task) {
  const long groups = (count + group - 1) / group;
  const long step = std::clamp(groups / (8L * threads), 1L, MAX_PANELS / group) * group;
  parallel((count + step - 1) / step, threads, [&](long i) { task(i * step, std::min(count, (i + 1) * step)); });
}
