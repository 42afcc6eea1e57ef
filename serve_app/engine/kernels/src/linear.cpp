// y = x W^T + b with W packed in panels, by the product that the layer names. Sums are float32 and in the order of the
// inputs, so that a row's result does not depend on the other rows.
#include "linear.h"

#include "exports.h"
#include "scratch.h"
#include "tile_product.h"
#include "vector_product.h"

namespace {

// Rounds x [m, k] to bfloat16 [m, k], and returns `to`.
const bf16* round_rows(const float* x, bf16* to, long m, long k, int threads) {
  parallel_rows(m * k, 1, threads, [&](long first, long last) {
    long i = first;
    for (; i + LANES <= last; i += LANES) store(to + i, load(x + i));
    if (i < last) store_some(to + i, load_some(x + i, last - i), last - i);
  });
  return to;
}

// Rounds x [m, k] to tiles of bfloat16 [m/16][k/32][16][32], inputs padded with zeros, and returns `to`.
const bf16* round_tiles(const float* x, bf16* to, long m, long k, int threads) {
  const long padded = padded_inputs(k, false);
  parallel_rows(m, k, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) {
      const float* const from = x + row * k;
      for (long i = 0; i < padded; i += LANES) {
        const F16 v = i + LANES <= k ? load(from + i) : load_some(from + i, std::max(0L, k - i));
        store(to + tile_offset(row, i, padded), v);
      }
    }
  });
  return to;
}

// y [m, outputs] = x W^T + b, or += if ADD, by the layer's product. room: `rounding_room` floats.
template <bool ADD, class Y>
void multiply(const Linear& l, const float* x, Y* y, long m, float* room, int threads) {
  const long n = l.outputs, k = l.inputs;
  const bf16* const w = (const bf16*)l.weight;
  switch (l.product) {
    case FLOATS: return multiply<ADD>(x, (const float*)l.weight, l.bias, y, m, n, k, threads);
    case WIDENED: return multiply<ADD>(x, w, l.bias, y, m, n, k, threads);
    case PAIRS: return multiply<ADD>(round_rows(x, (bf16*)room, m, k, threads), w, l.bias, y, m, n, k, threads);
    case TILES: {
      const bf16* const tiles = round_tiles(x, (bf16*)room, m, k, threads);
      return multiply_tiles<ADD>(tiles, w, l.bias, y, m, n, k, threads);
    }
  }
}

}  // namespace

long rounding_room(const Linear& l, long rows) {
  if (l.product != PAIRS && l.product != TILES) return 0;
  return whole_lines((rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * padded_inputs(l.inputs, false) / 2);
}

void project(const Linear& l, const float* x, float* y, long rows, float* room, int threads) {
  multiply<false>(l, x, y, rows, room, threads);
}

void add_projection(const Linear& l, const float* x, float* y, long rows, float* room, int threads) {
  multiply<true>(l, x, y, rows, room, threads);
}

void project_gated(const Linear& l, const float* x, float* y, long m, bool gelu, float* room, int threads) {
  const long n = l.outputs / 2, k = l.inputs;
  const bf16* const w = (const bf16*)l.weight;
  switch (l.product) {
    case FLOATS: return multiply_gated(x, (const float*)l.weight, l.bias, y, m, n, k, gelu, threads);
    case WIDENED: return multiply_gated(x, w, l.bias, y, m, n, k, gelu, threads);
    case PAIRS: {
      const bf16* const rows = round_rows(x, (bf16*)room, m, k, threads);
      return multiply_gated(rows, w, l.bias, y, m, n, k, gelu, threads);
    }
    case TILES: {
      const bf16* const tiles = round_tiles(x, (bf16*)room, m, k, threads);
      return multiply_gated_tiles(tiles, w, l.bias, y, m, n, k, gelu, threads);
    }
  }
}

int product_rank(long product) {
  if (product == TILES) return have_tiles() ? 4 : 0;
#ifdef __AVX512BF16__
  // Measured: on Intel with AMX, PAIRS has a quarter of the rate of float instructions. On AMD (Zen 5), PAIRS makes a
  // prefill 1.7 times faster.
  __builtin_cpu_init();
  if (product == PAIRS) return __builtin_cpu_is("amd") ? 3 : 1;
#endif
  return product == WIDENED ? 2 : 0;
}

void pack_weight(const void* weight, void* packed, long n, long k, int wide, int threads) {
  const long pairs = padded_inputs(k, wide) / 2, count = (n + LANES - 1) / LANES;
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

void linear(const Linear* l, const float* x, void* y, long m, int wide_out, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const room = scratch.take(rounding_room(*l, m));
  together(threads, [&] {
    wide_out ? multiply<false>(*l, x, (float*)y, m, room, threads) : multiply<false>(*l, x, (bf16*)y, m, room, threads);
  });
}
