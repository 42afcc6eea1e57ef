// y = x W^T + b with W packed in panels, by the product that the layer names. Sums are float32 and in the order of the
// inputs, so that a row's result does not depend on the other rows.
#include "linear.h"

#include <numeric>

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
  switch (l.product) {
    case FLOATS: return multiply<ADD>(x, whole_panels((const float*)w, k), l.bias, y, m, n, k, threads);
    case WIDENED:
      return halves(l, [&](const auto& weight) { multiply<ADD>(x, weight, l.bias, y, m, n, k, threads); });
    case PAIRS:
      return halves(l, [&](const auto& weight) { multiply<ADD>(rounded, weight, l.bias, y, m, n, k, threads); });
    case TILES:
      return halves(l, [&](const auto& weight) { multiply_tiles<ADD>(rounded, weight, l.bias, y, m, n, k, threads); });
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
  const void* const w = l.weight;
  const bf16* const rounded = (const bf16*)inputs;
  const bool to_tiles = l.product == TILES && next.product == TILES && m > FEW_ROWS;
  switch (l.product) {
    case FLOATS: multiply_gated(inputs, whole_panels((const float*)w, k), l.bias, y, m, n, k, gelu, threads); break;
    case WIDENED:
      halves(l, [&](const auto& weight) { multiply_gated(inputs, weight, l.bias, y, m, n, k, gelu, threads); });
      break;
    case PAIRS:
      halves(l, [&](const auto& weight) { multiply_gated(rounded, weight, l.bias, y, m, n, k, gelu, threads); });
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

void choose_codes(const bf16* weight, uint8_t* codes, int64_t* exceptions, long n, long k, int threads) {
  parallel((n + LANES - 1) / LANES, threads, [&](long j) {
    const long rows = std::min(LANES, n - j * LANES), padded = padded_inputs(k, false);
    int64_t counts[256] = {};
    for (long row = j * LANES; row < j * LANES + rows; row++)
      for (long i = 0; i < k; i++) counts[weight[row * k + i].bits >> 8]++;
    counts[0] += LANES * padded - rows * k;  // padding
    uint8_t order[256];
    std::iota(order, order + 256, 0);
    std::partial_sort(order, order + CODES, order + 256, [&](int a, int b) { return counts[a] > counts[b]; });
    std::copy(order, order + CODES, codes + j * CODES);
    exceptions[j] = LANES * padded;
    for (long code = 0; code < CODES; code++) exceptions[j] -= counts[order[code]];
  });
}

void pack_compact(const bf16* weight, void* packed, long n, long k, int threads) {
  const CompactWeight to(packed, n, k);
  parallel((n + LANES - 1) / LANES, threads, [&](long j) {
    uint8_t code_of[256];
    std::fill(code_of, code_of + 256, CODES);
    for (long code = CODES - 1; code >= 0; code--) code_of[to.codes[j * CODES + code]] = code;
    uint8_t* at = (uint8_t*)to.tiles + j * to.steps * COMPACT_TILE;
    Exception* exception = (Exception*)to.exceptions + to.firsts[j];
    for (long step = 0; step < to.steps; step++) {
      uint16_t words[TILE_SIZE];
      uint8_t tile_codes[TILE_SIZE];
      for (long lane = 0; lane < LANES; lane++)
        for (long i = 0; i < BF16_INPUTS; i++) {
          const long row = j * LANES + lane, col = step * BF16_INPUTS + i;
          words[i / 2 * 2 * LANES + lane * 2 + i % 2] = row < n && col < k ? weight[row * k + col].bits : 0;
        }
      for (long i = 0; i < TILE_SIZE; i++) {
        tile_codes[i] = code_of[words[i] >> 8];
        if (tile_codes[i] < CODES) continue;
        tile_codes[i] = 0;
        *exception++ = {(uint32_t)(step * TILE_SIZE + i), words[i], 0};
      }
      for (long group = 0; group < TILE_ROWS / COMPACT_LINES; group++, at += COMPACT_GROUP)
        for (long i = 0; i < 64; i++) {
          const long first = compact_place(group, 0, i), second = compact_place(group, 1, i);
          at[i] = words[first], at[64 + i] = words[second];
          at[128 + i] = tile_codes[first] | tile_codes[second] << 4;
        }
    }
    *exception = {UINT32_MAX, 0, 0};
  });
}

int compact_is_fast() {
#ifdef __AVX2__
  return 1;
#else
  return 0;
#endif
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
