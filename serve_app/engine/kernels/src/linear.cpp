// y = x W^T + b with W packed in panels of sixteen output features. Sums in float32, one accumulator per
// output and always in the order of the input features: a row's result does not depend on the other rows.
#include "linear.h"

#include <algorithm>

#include "pool.h"
#include "rowwise.h"

namespace {

// Panels: float32 [N/16][K/2][2][16]; bfloat16 [N/16][K/2][16][2], so that one 64-byte load carries sixteen
// features at two inputs and the halves of each word become floats by a shift or a mask.
struct Pair {
  F16 even, odd;
};

INLINE Pair load_pair(const float* p) { return {load(p), load(p + LANES)}; }

INLINE Pair load_pair(const bf16* p) {
  U16 words;
  memcpy(&words, p, sizeof words);
  return {(F16)(words << 16), (F16)(words & 0xffff0000u)};
}

long panel_size(long k) { return (k + 1) / 2 * 2 * LANES; }

constexpr long AHEAD = 1024;  // bytes: hardware prefetches a stream only to the end of its page

// MR rows of x against NR neighbouring panels; y is overwritten, or added to.
template <bool ADD, int MR, int NR, class W, class Y>
void tile(const float* x, long k, const W* w, const float* bias, Y* y, long n, long left) {
  const long pairs = k / 2, panel = panel_size(k);
  F16 acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[i][j] = bias ? load(bias + j * LANES) : F16{};
  for (long p = 0; p < pairs; p++) {
    Pair b[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      const W* const pair = w + j * panel + p * 2 * LANES;
      b[j] = load_pair(pair);
      __builtin_prefetch((const char*)pair + AHEAD, 0, 3);
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
      const F16 a = splat(x[i * k + 2 * p]);
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].even;
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
      const F16 a = splat(x[i * k + 2 * p + 1]);
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) acc[i][j] += a * b[j].odd;
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

template <bool ADD, int MR, class W, class Y>
void panels(const float* x, long k, const W* w, const float* bias, Y* y, long n, long first, long last) {
  const long panel = panel_size(k);
  long j = first;
  for (; j + GROUP <= last; j += GROUP)
    tile<ADD, MR, GROUP>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
  for (; j < last; j++)
    tile<ADD, MR, 1>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
}

template <bool ADD, class W, class Y>
void rows(long count, const float* x, long k, const W* w, const float* b, Y* y, long n, long first, long last) {
  switch (count) {
    case 1: return panels<ADD, 1>(x, k, w, b, y, n, first, last);
    case 2: return panels<ADD, 2>(x, k, w, b, y, n, first, last);
    case 3: return panels<ADD, 3>(x, k, w, b, y, n, first, last);
    case 4: return panels<ADD, 4>(x, k, w, b, y, n, first, last);
    case 5: return panels<ADD, 5>(x, k, w, b, y, n, first, last);
    case 6: return panels<ADD, 6>(x, k, w, b, y, n, first, last);
    case 7: return panels<ADD, 7>(x, k, w, b, y, n, first, last);
    case 8: return panels<ADD, 8>(x, k, w, b, y, n, first, last);
  }
}

// task(first, last) over ranges of `count` panels, at most PANELS each. A task's weights stay in the second-level
// cache over all its rows.
constexpr long PANELS = 4 * GROUP;

template <class F>
void parallel_panels(long count, int threads, F&& task) {
  const long groups = (count + GROUP - 1) / GROUP;
  const long step = std::clamp(groups / (8L * threads), 1L, PANELS / GROUP) * GROUP;
  parallel((count + step - 1) / step, threads, [&](long i) { task(i * step, std::min(count, (i + 1) * step)); });
}

// tile(first, rows) over all of m rows, spread evenly: 9 rows are 5 + 4, not 8 + 1.
template <class F>
void row_tiles(long m, F&& tile) {
  const long count = (m + MAX_ROWS - 1) / MAX_ROWS;
  for (long t = 0; t < count; t++) tile(m * t / count, m * (t + 1) / count - m * t / count);
}

// x [m, k] and k even; bias padded to whole panels.
template <bool ADD, class W, class Y>
void multiply(const float* x, const W* w, const float* bias, Y* y, long m, long n, long k, int threads) {
  parallel_panels((n + LANES - 1) / LANES, threads, [&](long first, long last) {
    row_tiles(m, [&](long row, long count) {
      rows<ADD>(count, x + row * k, k, w, bias, y + row * n, n, first, last);
    });
  });
}

// The first n outputs gate the other n, tile by tile; n is a multiple of sixteen.
template <class W>
void multiply_gated(const float* x, const W* w, const float* bias, float* y, long m, long n, long k, bool gelu,
                    int threads) {
  const long count = n / LANES, panel = panel_size(k);
  parallel_panels(count, threads, [&](long first, long last) {
    alignas(64) float both[2][MAX_ROWS * PANELS * LANES];
    const long width = (last - first) * LANES;
    row_tiles(m, [&](long row, long size) {
      for (long up = 0; up < 2; up++) {
        const long from = first + up * count;
        rows<false>(size, x + row * k, k, w + from * panel, bias ? bias + from * LANES : nullptr, both[up], width, 0,
                    last - first);
      }
      for (long r = 0; r < size; r++)
        for (long i = 0; i < width; i += LANES)
          store(y + (row + r) * n + first * LANES + i,
                gate_times_up(load(both[0] + r * width + i), load(both[1] + r * width + i), gelu));
    });
  });
}

// call(weights) with the weights of their own type.
template <class F>
void with_weights(const Linear& linear, F&& call) {
  linear.wide ? call((const float*)linear.weight) : call((const bf16*)linear.weight);
}

}  // namespace

void project(const Linear& l, const float* x, float* y, long rows, int threads) {
  with_weights(l, [&](auto w) { multiply<false>(x, w, l.bias, y, rows, l.outputs, l.inputs, threads); });
}

void add_projection(const Linear& l, const float* x, float* y, long rows, int threads) {
  with_weights(l, [&](auto w) { multiply<true>(x, w, l.bias, y, rows, l.outputs, l.inputs, threads); });
}

void project_gated(const Linear& l, const float* x, float* y, long rows, bool gelu, int threads) {
  with_weights(l, [&](auto w) { multiply_gated(x, w, l.bias, y, rows, l.outputs / 2, l.inputs, gelu, threads); });
}

extern "C" {

// w [n, k] rows -> panels, zero-padded; `wide` elements are float32, others bfloat16.
void pack_weight(const void* weight, void* packed, long n, long k, int wide, int threads) {
  const long pairs = (k + 1) / 2, count = (n + LANES - 1) / LANES;
  parallel(count, threads, [&](long j) {
    for (long p = 0; p < pairs; p++)
      for (long lane = 0; lane < LANES; lane++)
        for (long odd = 0; odd < 2; odd++) {
          const long row = j * LANES + lane, col = 2 * p + odd, base = (j * pairs + p) * 2 * LANES;
          const bool inside = row < n && col < k;
          if (wide)
            ((float*)packed)[base + odd * LANES + lane] = inside ? ((const float*)weight)[row * k + col] : 0.f;
          else
            ((bf16*)packed)[base + lane * 2 + odd] = inside ? ((const bf16*)weight)[row * k + col] : bf16{0};
        }
  });
}

// x [m, k] float32 (k even) -> y [m, n]; `wide` weights are float32, `wide_out` outputs are float32.
void linear(const float* x, const void* packed, const float* bias, void* y, long m, long n, long k, int wide,
            int wide_out, int threads) {
  const Linear l{packed, bias, n, k, wide};
  if (wide_out) return project(l, x, (float*)y, m, threads);
  with_weights(l, [&](auto w) { multiply<false>(x, w, bias, (bf16*)y, m, n, k, threads); });
}
}
