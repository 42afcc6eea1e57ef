// y = x W^T + b with W packed in panels of sixteen output features. Sums in float32, one accumulator per
// output and always in the order of the input features: a row's result does not depend on the other rows.
#include <algorithm>

#include "pool.h"
#include "vec.h"

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

// MR rows of x against NR neighbouring panels.
template <int MR, int NR, class W, class Y>
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
    for (int j = 0; j < NR; j++) b[j] = load_pair(w + j * panel + p * 2 * LANES);
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
      if (some == LANES)
        store(y + i * n + j * LANES, acc[i][j]);
      else if (some > 0)
        store_some(y + i * n + j * LANES, acc[i][j], some);
    }
}

constexpr int MAX_ROWS = 8;  // with three panels: 24 accumulators, six weights and one input in 32 registers
constexpr long GROUP = 3;

template <int MR, class W, class Y>
void panels(const float* x, long k, const W* w, const float* bias, Y* y, long n, long first, long last) {
  const long panel = panel_size(k);
  long j = first;
  for (; j + GROUP <= last; j += GROUP)
    tile<MR, GROUP>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
  for (; j < last; j++)
    tile<MR, 1>(x, k, w + j * panel, bias ? bias + j * LANES : nullptr, y + j * LANES, n, n - j * LANES);
}

template <class W, class Y>
void rows(long count, const float* x, long k, const W* w, const float* b, Y* y, long n, long first, long last) {
  switch (count) {
    case 1: return panels<1>(x, k, w, b, y, n, first, last);
    case 2: return panels<2>(x, k, w, b, y, n, first, last);
    case 3: return panels<3>(x, k, w, b, y, n, first, last);
    case 4: return panels<4>(x, k, w, b, y, n, first, last);
    case 5: return panels<5>(x, k, w, b, y, n, first, last);
    case 6: return panels<6>(x, k, w, b, y, n, first, last);
    case 7: return panels<7>(x, k, w, b, y, n, first, last);
    case 8: return panels<8>(x, k, w, b, y, n, first, last);
  }
}

// x [m, k] and k even; bias padded to whole panels. A task's weights stay in the second-level cache over all rows.
template <class W, class Y>
void multiply(const float* x, const W* w, const float* bias, Y* y, long m, long n, long k, int threads) {
  const long count = (n + LANES - 1) / LANES, groups = (count + GROUP - 1) / GROUP;
  const long step = std::clamp(groups / (8L * threads), 1L, 4L) * GROUP;
  const long row_tiles = (m + MAX_ROWS - 1) / MAX_ROWS;
  parallel((count + step - 1) / step, threads, [&](long task) {
    const long first = task * step, last = std::min(count, first + step);
    for (long t = 0; t < row_tiles; t++) {
      // Spread the rows evenly: 9 rows are 5 + 4, not 8 + 1.
      const long r0 = m * t / row_tiles, r1 = m * (t + 1) / row_tiles;
      rows(r1 - r0, x + r0 * k, k, w, bias, y + r0 * n, n, first, last);
    }
  });
}

}  // namespace

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
  if (wide && wide_out)
    multiply(x, (const float*)packed, bias, (float*)y, m, n, k, threads);
  else if (wide)
    multiply(x, (const float*)packed, bias, (bf16*)y, m, n, k, threads);
  else if (wide_out)
    multiply(x, (const bf16*)packed, bias, (float*)y, m, n, k, threads);
  else
    multiply(x, (const bf16*)packed, bias, (bf16*)y, m, n, k, threads);
}
}
