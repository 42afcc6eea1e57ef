// y = x W^T + b with W packed in panels, by the product that the layer names. Sums are float32 and in the order of the
// inputs, so that a row's result does not depend on the other rows.
#include "linear.h"

#include "exports.h"
#include "quantized_product.h"
#include "scratch.h"
#include "tile_product.h"
#include "vector_product.h"

namespace {

// Rounds x [k] to bfloat16.
void round_row(const float* x, bf16* to, long k) {
  long i = 0;
  for (; i + LANES <= k; i += LANES) store(to + i, load(x + i));
  if (i < k) store_some(to + i, load_some(x + i, k - i), k - i);
}

// Rounds x [k] to row `row` of tiles of bfloat16 [rows/16][k/32][16][32], inputs padded with zeros.
void round_tiled(const float* x, bf16* tiles, long row, long k) {
  bf16* to = tiles + tile_offset(row, 0, padded_inputs(k, false));
  long i = 0;
  for (; i + BF16_INPUTS <= k; i += BF16_INPUTS, to += TILE_SIZE)
    store(to, load(x + i)), store(to + LANES, load(x + i + LANES));
  if (i == k) return;
  store(to, load_some(x + i, std::min(LANES, k - i)));
  store(to + LANES, load_some(x + i + LANES, std::max(0L, k - i - LANES)));
}

// `rows` rows of inputs of a quantised layer.
QuantizedRows quantized(const Linear& l, const float* inputs, long rows) {
  return QuantizedRows(inputs, rows, l.inputs, l.product == INT4);
}

// y [m, outputs] = x W^T + b, or += if ADD, by the layer's product. x: inputs in its form.
template <bool ADD, class Y>
void multiply(const Linear& l, const float* x, Y* y, long m, int threads) {
  const long n = l.outputs, k = l.inputs;
  const bf16 *const w = (const bf16*)l.weight, *const rounded = (const bf16*)x;
  switch (l.product) {
    case FLOATS: return multiply<ADD>(x, (const float*)l.weight, l.bias, y, m, n, k, threads);
    case WIDENED: return multiply<ADD>(x, w, l.bias, y, m, n, k, threads);
    case PAIRS: return multiply<ADD>(rounded, w, l.bias, y, m, n, k, threads);
    case TILES: return multiply_tiles<ADD>(rounded, w, l.bias, y, m, n, k, threads);
    case INT8: return multiply_quantized<ADD>(Int8Weight(w, n, k), quantized(l, x, m), l.bias, y, n, threads);
    case INT4: return multiply_quantized<ADD>(Int4Weight(w, n, k), quantized(l, x, m), l.bias, y, n, threads);
  }
}

}  // namespace

long inputs_room(const Linear& l, long rows) {
  switch (l.product) {
    case PAIRS: return whole_lines((rows * l.inputs + 1) / 2);
    case TILES: return whole_lines((rows + BLOCK - 1) / BLOCK * BLOCK * padded_inputs(l.inputs, false) / 2);
    case INT8:
    case INT4: return quantized(l, nullptr, rows).room();
    default: return whole_lines(rows * l.inputs);
  }
}

void put_row(const Linear& l, const float* x, float* inputs, long row) {
  switch (l.product) {
    case PAIRS: return round_row(x, (bf16*)inputs + row * l.inputs, l.inputs);
    case TILES: return round_tiled(x, (bf16*)inputs, row, l.inputs);
    case INT8:
    case INT4: return quantize_row(x, l.inputs, row, quantized(l, inputs, row + 1));
    default: std::copy(x, x + l.inputs, inputs + row * l.inputs);
  }
}

const float* take_inputs(const Linear& l, const float* x, float* room, long rows, int threads) {
  if (l.product == FLOATS || l.product == WIDENED) return x;
  parallel_rows(rows, l.inputs, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) put_row(l, x + row * l.inputs, room, row);
  });
  return room;
}

void project(const Linear& l, const float* inputs, float* y, long rows, int threads) {
  multiply<false>(l, inputs, y, rows, threads);
}

void add_projection(const Linear& l, const float* inputs, float* y, long rows, int threads) {
  multiply<true>(l, inputs, y, rows, threads);
}

const float* project_gated(const Linear& l, const float* inputs, const Linear& next, float* y, float* room, long m,
                           bool gelu, int threads) {
  const long n = l.outputs / 2, k = l.inputs;
  const bf16 *const w = (const bf16*)l.weight, *const rounded = (const bf16*)inputs;
  switch (l.product) {
    case FLOATS: multiply_gated(inputs, (const float*)l.weight, l.bias, y, m, n, k, gelu, threads); break;
    case WIDENED: multiply_gated(inputs, w, l.bias, y, m, n, k, gelu, threads); break;
    case PAIRS: multiply_gated(rounded, w, l.bias, y, m, n, k, gelu, threads); break;
    case TILES:
      if (next.product == TILES && m > FEW_ROWS) {
        multiply_gated_to_tiles(rounded, w, l.bias, (bf16*)room, m, n, k, gelu, threads);
        return room;
      }
      multiply_gated_tiles(rounded, w, l.bias, y, m, n, k, gelu, threads);
      break;
    case INT8:
      multiply_quantized_gated(Int8Weight(w, l.outputs, k), quantized(l, inputs, m), l.bias, y, n, gelu, threads);
      break;
    case INT4:
      multiply_quantized_gated(Int4Weight(w, l.outputs, k), quantized(l, inputs, m), l.bias, y, n, gelu, threads);
      break;
  }
  return take_inputs(next, y, room, m, threads);
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

void pack_int8(const int8_t* codes, const float* scales, void* packed, long n, long k, int threads) {
  const long steps = int_steps(k), count = (n + LANES - 1) / LANES;
  float* const to = (float*)((uint8_t*)packed + count * steps * INT_TILE);
  parallel(count, threads, [&](long j) {
    uint8_t* at = (uint8_t*)packed + j * steps * INT_TILE;
    for (long quad = 0; quad < steps * INT_TILE_ROWS; quad++)
      for (long row = j * LANES; row < (j + 1) * LANES; row++)
        for (long i = 4 * quad; i < 4 * quad + 4; i++) *at++ = INT8_ZERO + (row < n && i < k ? codes[row * k + i] : 0);
    for (long row = j * LANES; row < (j + 1) * LANES; row++) to[row] = row < n ? scales[row] : 0.f;
  });
}

void pack_int4(const int8_t* codes, const uint8_t* groups, const float* scales, void* packed, long n, long k,
               int threads) {
  const long steps = int_steps(k), count = (n + LANES - 1) / LANES, row_groups = (k + INT4_INPUTS - 1) / INT4_INPUTS;
  float* const to = (float*)((uint8_t*)packed + count * steps * INT4_STEP);
  const auto group = [&](long row, long i) { return groups + (row * row_groups + i / INT4_INPUTS) * 2; };
  const auto q = [&](long row, long i) -> uint8_t {
    if (row >= n || i >= k || !*group(row, i)) return 0;
    return (codes[row * k + i] + group(row, i)[1]) / *group(row, i);
  };
  parallel(count, threads, [&](long j) {
    uint8_t* at = (uint8_t*)packed + j * steps * INT4_STEP;
    const long first = j * LANES, last = first + LANES;
    for (long input = 0; input < steps * INT_INPUTS; input += INT_INPUTS) {
      for (long i = input; i < input + INT_INPUTS / 2; i += 4)
        for (long row = first; row < last; row++)
          for (long byte = i; byte < i + 4; byte++) *at++ = q(row, byte) | q(row, byte + INT_INPUTS / 2) << 4;
      for (long i = input; i < input + INT_INPUTS; i += INT4_INPUTS)
        for (long row = first; row < last; row++)
          for (long part = 0; part < 2; part++) *at++ = row < n && i < k ? group(row, i)[part] : 0;
    }
    for (long row = first; row < last; row++) to[row] = row < n ? scales[row] : 0.f;
  });
}

void linear(const Linear* l, const float* x, void* y, long m, int wide_out, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const room = scratch.take(inputs_room(*l, m));
  together(threads, [&] {
    const float* const inputs = take_inputs(*l, x, room, m, threads);
    wide_out ? multiply<false>(*l, inputs, (float*)y, m, threads) : multiply<false>(*l, inputs, (bf16*)y, m, threads);
  });
}
