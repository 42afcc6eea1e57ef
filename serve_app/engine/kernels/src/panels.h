// Packed weights, and how their products are shared between threads.
//
// A weight of N outputs and K inputs is packed in panels of sixteen outputs, padded with zeros:
//   float32   [N/16][K/2][2][16], K rounded up to 2
//   bfloat16  [N/16][K/2][16][2], K rounded up to 32
// 64 bytes of bfloat16 have sixteen outputs at two inputs. Sixteen such lines are one tile of AMX.
#pragma once
#include <algorithm>

#include "pool.h"
#include "scratch.h"
#include "vec.h"

constexpr long FLOAT_INPUTS = 2, BF16_INPUTS = 32;  // the inputs of a panel are padded to a multiple of these

INLINE long padded_inputs(long k, bool wide) {
  const long unit = wide ? FLOAT_INPUTS : BF16_INPUTS;
  return (k + unit - 1) / unit * unit;
}

// Elements of a panel with k inputs, by the type of the weights.
INLINE long panel_size(const float*, long k) { return padded_inputs(k, true) * LANES; }
INLINE long panel_size(const bf16*, long k) { return padded_inputs(k, false) * LANES; }

// Panels as they are, one after the other, from panel `first` on.
template <class W>
struct WholePanels {
  const W* w;
  long panel, first = 0;  // panel: elements

  const W* at(long j) const { return w + (j - first) * panel; }
};

template <class W>
WholePanels<W> whole_panels(const W* w, long k) {
  return {w, panel_size(w, k)};
}

// Calls task(first, last, turn) for ranges [first, last) of `count` panels. A range has a few groups of `group` panels,
// and at most `most`, which is MAX_PANELS or less, so that its weights stay in the second-level cache while the task goes
// over all rows.
constexpr long MAX_PANELS = 12;

template <class F>
void parallel_panels(long count, long group, long most, int threads, F&& task) {
  const long groups = (count + group - 1) / group;
  const long step = std::clamp(groups / (8L * threads), 1L, most / group) * group;
  parallel((count + step - 1) / step, threads, [&](long i, Turn& turn) {
    task(i * step, std::min(count, (i + 1) * step), turn);
  });
}

// With up to this many rows, a task computes into memory of its own and then takes its turn to write. With more rows, a
// task takes its turn first and computes in place: the wait for a lost core is then short beside the task.
constexpr long KEPT_ROWS = 16;

// Memory for `count` outputs. It belongs to the calling thread, and its next call hands out the same memory.
inline float* own_outputs(long count) {
  static thread_local Scratch scratch;
  return scratch.take(count);
}

// Writes the outputs [m, width] of a task to the columns of y [m, n], whose rows are `apart` elements apart, from `column`
// on: y += outputs if ADD, else y = outputs. `width` is a multiple of sixteen and may reach beyond y.
template <bool ADD, class Y>
void hand_over(const float* outputs, long m, long width, Y* y, long n, long apart, long column) {
  const long columns = std::min(width, n - column);
  for (long r = 0; r < m; r++)
    for (long i = 0; i < columns; i += LANES) {
      Y* const at = y + r * apart + column + i;
      const F16 v = load(outputs + r * width + i);
      if (const long some = columns - i; some >= LANES)
        store(at, ADD ? load(at) + v : v);
      else
        store_some(at, ADD ? load_some(at, some) + v : v, some);
    }
}

// The first panel of the task that a thread presumably does after that of the panels [first, last) of `panels`, as threads
// take turns; `first` if there is none.
inline long following(long first, long last, long panels, int threads) {
  const long next = first + threads * (last - first);
  return next < panels ? next : first;
}
