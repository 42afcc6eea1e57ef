// Packed weights: panels of sixteen outputs, zero-padded. float32 [N/16][K/2][2][16] with K rounded up to 2; bfloat16
// [N/16][K/2][16][2] with K rounded up to 32, so that 64 bytes carry sixteen outputs at two inputs, and sixteen such
// lines are what an AMX tile wants.
#pragma once
#include <algorithm>

#include "pool.h"
#include "scratch.h"
#include "vec.h"

constexpr long FLOAT_INPUTS = 2, BF16_INPUTS = 32;  // to a multiple of which a panel is padded

INLINE long padded_inputs(long k, bool wide) {
  const long unit = wide ? FLOAT_INPUTS : BF16_INPUTS;
  return (k + unit - 1) / unit * unit;
}

INLINE long panel_size(const float*, long k) { return padded_inputs(k, true) * LANES; }
INLINE long panel_size(const bf16*, long k) { return padded_inputs(k, false) * LANES; }

// task(first, last, turn) over ranges of `count` panels: a few groups of `group` each, at most MAX_PANELS. A task's
// weights stay in the second-level cache over all its rows.
constexpr long MAX_PANELS = 12;

template <class F>
void parallel_panels(long count, long group, int threads, F&& task) {
  const long groups = (count + group - 1) / group;
  const long step = std::clamp(groups / (8L * threads), 1L, MAX_PANELS / group) * group;
  parallel((count + step - 1) / step, threads, [&](long i, Turn& turn) {
    task(i * step, std::min(count, (i + 1) * step), turn);
  });
}

// Up to here the outputs of a task are its own until it is its turn to write; with more rows it takes its turn first,
// as a task is then long beside what it could wait for.
constexpr long KEPT_ROWS = 16;

// Memory for `count` outputs, of the calling thread.
inline float* own_outputs(long count) {
  static thread_local Scratch scratch;
  return scratch.take(count);
}

// Outputs of a task [m, width] -> columns of y [m, n] from `column` on, stored or added.
template <bool ADD, class Y>
void hand_over(const float* outputs, long m, long width, Y* y, long n, long column) {
  const long columns = std::min(width, n - column);
  for (long r = 0; r < m; r++)
    for (long i = 0; i < columns; i += LANES) {
      Y* const at = y + r * n + column + i;
      const F16 v = load(outputs + r * width + i);
      if (const long some = columns - i; some >= LANES)
        store(at, ADD ? load(at) + v : v);
      else
        store_some(at, ADD ? load_some(at, some) + v : v, some);
    }
}
