// y = x W^T + b with W packed in panels, by the product that the layer names. Sums are float32 and in the order of the
// inputs, so that a row's result does not depend on the other rows.
#include "linear.h"

#include "exports.h"
#include "quantized_product.h"
#include "register_product.h"
#include "scratch.h"
#include "tile_product.h"

namespace {

// Elements from a row of bfloat16 to the next: an odd number of cache lines, so that the rows of a block lie in different
// sets of the first-level cache.
long row_apart(long k) { return padded_inputs(k, false) | BF16_INPUTS; }

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

// Calls product(weight) with a layer's weight of bfloat16, in its form.
template <class F>
void halves(const Linear& l, F&& product) {
  if (l.compact)
    product(CompactWeight(l.weight, l.outputs, l.inputs));
  else
    product(whole_panels((const bf16*)l.weight, l.inputs));
}

// y [m, outputs] = x W^T + b, or += if ADD, by the layer's product. x: inputs in its form.
template <bool ADD, class Y>
void multiply(const Linear& l, const float* x, Y* y, long m, int threads) {
  const long n = l.outputs, k = l.inputs;
  const void* const w = l.weight;
  const bf16* const rounded = (const bf16*)x;
  const InputRows<float> wide{x, k, k};
  const InputRows<bf16> narrow{rounded, k, row_apart(k)};
  switch (l.product) {
    case FLOATS: return multiply<ADD>(wide, whole_panels((const float*)w, k), l.bias, y, m, n, threads);
    case WIDENED:
      return halves(l, [&](const auto& weight) { multiply<ADD>(wide, weight, l.bias, y, m, n, threads); });
    case PAIRS:
      return halves(l, [&](const auto& weight) { multiply<ADD>(narrow, weight, l.bias, y, m, n, threads); });
    case TILES:
      return halves(l, [&](const auto& weight) { multiply_tiles<ADD>(rounded, weight, l.bias, y, m, n, k, threads); });
    case INT8: return multiply_quantized<ADD>(Int8Weight(w, n, k), quantized(l, x, m), l.bias, y, n, threads);
    case INT4: return multiply_quantized<ADD>(Int4Weight(w, n, k), quantized(l, x, m), l.bias, y, n, threads);
  }
}

}  // namespace

long inputs_room(const Linear& l, long rows) {
  switch (l.product) {
    case PAIRS: return rows * row_apart(l.inputs) / 2;
    case TILES: return whole_lines((rows + BLOCK - 1) / BLOCK * BLOCK * padded_inputs(l.inputs, false) / 2);
    case INT8:
    case INT4: return quantized(l, nullptr, rows).room();
    default: return whole_lines(rows * l.inputs);
  }
}

long rounded_row(const Linear& l) { return l.product == PAIRS ? row_apart(l.inputs) : 0; }

void put_row(const Linear& l, const float* x, float* inputs, long row) {
  switch (l.product) {
    case PAIRS: return round_row(x, (bf16*)inputs + row * row_apart(l.inputs), l.inputs);
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
  const void* const w = l.weight;
  const bf16* const rounded = (const bf16*)inputs;
  const InputRows<float> wide{inputs, k, k};
  const InputRows<bf16> narrow{rounded, k, row_apart(k)};
  const bool to_tiles = l.product == TILES && next.product == TILES && m > FEW_ROWS;
  switch (l.product) {
    case FLOATS: multiply_gated(wide, whole_panels((const float*)w, k), l.bias, y, m, n, n, gelu, threads); break;
    case WIDENED:
      halves(l, [&](const auto& weight) { multiply_gated(wide, weight, l.bias, y, m, n, n, gelu, threads); });
      break;
    case PAIRS:
      halves(l, [&](const auto& weight) {
        if (const long apart = rounded_row(next))
          multiply_gated(narrow, weight, l.bias, (bf16*)room, m, n, apart, gelu, threads);
        else
          multiply_gated(narrow, weight, l.bias, y, m, n, n, gelu, threads);
      });
      if (rounded_row(next)) return room;
      break;
    case TILES:
      halves(l, [&](const auto& weight) {
        if (to_tiles)
          multiply_gated_to_tiles(rounded, weight, l.bias, (bf16*)room, m, n, k, gelu, threads);
        else
          multiply_gated_tiles(rounded, weight, l.bias, y, m, n, k, gelu, threads);
      });
      if (to_tiles) return room;
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

void linear(const Linear* l, const float* x, void* y, long m, int wide_out, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const room = scratch.take(inputs_room(*l, m));
  together(threads, [&] {
    const float* const inputs = take_inputs(*l, x, room, m, threads);
    wide_out ? multiply<false>(*l, inputs, (float*)y, m, threads) : multiply<false>(*l, inputs, (bf16*)y, m, threads);
  });
}
