// Weights in the forms that products read: panels of floats, compact panels, and panels of quantised weights.
#include <numeric>

#include "compact.h"
#include "exports.h"
#include "int4_product.h"

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
