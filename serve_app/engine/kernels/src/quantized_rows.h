// Rows of activations as codes, for the products of quantised weights.
#pragma once
#include "codes.h"
#include "panels.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr long INT_INPUTS = 64;     // the inputs of a quantised panel are padded to a multiple of these
constexpr long INT4_INPUTS = 16;    // the inputs of an int4 weight that share a step and a least
constexpr long INT_TILE_ROWS = 16;  // rows side by side in memory

INLINE long int_steps(long k) { return (k + INT_INPUTS - 1) / INT_INPUTS; }

// Blocks of sixteen rows: their scales [16], the sums of their codes [16], then the codes as tiles of AMX [k/64][16][64].
// If `grouped`, as int4 weights ask, then the sums of every sixteen codes [16][k/16].
struct QuantizedRows {
  static constexpr long STRIDE = INT_TILE_ROWS * INT_INPUTS;  // from a row's codes to those at its next 64 inputs

  char* blocks;
  long rows, steps;
  bool grouped;

  QuantizedRows(const float* inputs, long rows, long k, bool grouped)
      : blocks((char*)inputs), rows(rows), steps(int_steps(k)), grouped(grouped) {}

  // Floats of memory for all rows.
  long room() const { return (rows + INT_TILE_ROWS - 1) / INT_TILE_ROWS * block_bytes() / 4; }
  long row_groups() const { return steps * (INT_INPUTS / INT4_INPUTS); }
  long block_bytes() const {
    return INT_TILE_ROWS * 4 * (2 + (grouped ? row_groups() : 0)) + steps * STRIDE;
  }

  char* block(long r) const { return blocks + r / INT_TILE_ROWS * block_bytes(); }
  float& scale(long r) const { return ((float*)block(r))[r % INT_TILE_ROWS]; }
  int32_t& sum(long r) const { return ((int32_t*)(block(r) + INT_TILE_ROWS * 4))[r % INT_TILE_ROWS]; }
  // The codes of a row at its first 64 inputs.
  int8_t* row(long r) const { return (int8_t*)block(r) + INT_TILE_ROWS * 4 * 2 + r % INT_TILE_ROWS * INT_INPUTS; }
  // The sums of every sixteen codes of a row, times -2^16.
  uint32_t* group_sums(long r) const {
    return (uint32_t*)(block(r) + INT_TILE_ROWS * 4 * 2 + steps * STRIDE) + r % INT_TILE_ROWS * row_groups();
  }
};

typedef int32_t I8 __attribute__((vector_size(32)));
typedef int32_t I4 __attribute__((vector_size(16)));

INLINE int32_t sum(I16 v) {
  const auto eights = halves<I8>(v);
  const auto fours = halves<I4>(eights.low + eights.high);
  const I4 x = fours.low + fours.high;
  return (x[0] + x[2]) + (x[1] + x[3]);
}

// Stores 64 codes as bytes; and the sums of every sixteen of them, times -2^16, unless `sums` is null.
INLINE void store_codes(const I16 (&codes)[4], int8_t* to, uint32_t* sums) {
#ifdef __AVX512VNNI__  // GCC 12 narrows and adds up by many more instructions
  const auto pack = [&](int i) { return _mm512_packs_epi32((__m512i)codes[i], (__m512i)codes[i + 1]); };
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(pack(0), pack(2)));
  _mm512_storeu_si512(to, bytes);
  if (!sums) return;
  const __m512i fours = _mm512_dpbusd_epi32(__m512i{}, _mm512_set1_epi8(1), bytes);
  const __m512i eights = _mm512_add_epi32(fours, _mm512_shuffle_epi32(fours, _MM_PERM_BADC));
  const __m512i all = _mm512_add_epi32(eights, _mm512_shuffle_epi32(eights, _MM_PERM_CDAB));
  const __m512i negative = _mm512_slli_epi32(_mm512_sub_epi32(__m512i{}, all), 16);
  _mm_storeu_si128((__m128i*)sums, _mm512_castsi512_si128(_mm512_permutexvar_epi32(order, negative)));
#else
  for (int i = 0; i < 4; i++) {
    const C16 bytes = __builtin_convertvector(codes[i], C16);
    memcpy(to + i * LANES, &bytes, sizeof bytes);
    if (sums) sums[i] = -(uint32_t)sum(codes[i]) << 16;
  }
#endif
}

// Quantises x [k] to row `r`.
inline void quantize_row(const float* x, long k, long r, const QuantizedRows& to) {
  const Codes coded(peak_of(x, k));
  to.scale(r) = coded.scale;
  int8_t* codes = to.row(r);
  uint32_t* group_sums = to.grouped ? to.group_sums(r) : nullptr;
  I16 sums = {};
  const auto step = [&](auto&& at) {
    I16 four[4];
    for (int i = 0; i < 4; i++) four[i] = coded.of(at(i)), sums += four[i];
    store_codes(four, codes, group_sums);
    codes += to.STRIDE;
    if (group_sums) group_sums += INT_INPUTS / INT4_INPUTS;
  };
  long i = 0;
  for (; i + INT_INPUTS <= k; i += INT_INPUTS) step([&](int j) { return load(x + i + j * LANES); });
  if (i < k)
    step([&](int j) { return load_some(x + i + j * LANES, std::clamp(k - i - j * LANES, 0L, LANES)); });
  to.sum(r) = sum(sums);
}

// Each lane of `sums` plus four products: unsigned bytes of a lane of `w` with signed bytes of the same lane of `x`.
INLINE I16 add_four(I16 sums, U16 w, U16 x) {
#if defined(__AVX512VNNI__)
  return (I16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
  __m256i to[2], weights[2], rows[2];
  memcpy(to, &sums, sizeof to), memcpy(weights, &w, sizeof weights), memcpy(rows, &x, sizeof rows);
  for (int i = 0; i < 2; i++) {  // sixteen bits hold every factor, so no sum saturates
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights[i], _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(rows[i], 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weights[i], 8), _mm256_srai_epi16(rows[i], 8));
    to[i] = _mm256_add_epi32(to[i], _mm256_add_epi32(even, odd));
  }
  memcpy(&sums, to, sizeof to);
  return sums;
#else
  const I16 codes = (I16)x;
  sums += (I16)(w & 0xffu) * (codes << 24 >> 24);
  sums += (I16)(w >> 8 & 0xffu) * (codes << 16 >> 24);
  sums += (I16)(w >> 16 & 0xffu) * (codes << 8 >> 24);
  return sums + (I16)(w >> 24) * (codes >> 24);
#endif
}

// Each lane of `sums` plus two products: signed halves of a lane of `a` with those of the same lane of `b`.
INLINE I16 add_two(I16 sums, U16 a, U16 b) {
#if defined(__AVX512VNNI__)
  return (I16)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  __m256i to[2], left[2], right[2];
  memcpy(to, &sums, sizeof to), memcpy(left, &a, sizeof left), memcpy(right, &b, sizeof right);
  for (int i = 0; i < 2; i++) to[i] = _mm256_add_epi32(to[i], _mm256_madd_epi16(left[i], right[i]));
  memcpy(&sums, to, sizeof to);
  return sums;
#else
  return sums + ((I16)a << 16 >> 16) * ((I16)b << 16 >> 16) + ((I16)a >> 16) * ((I16)b >> 16);
#endif
}

// Four codes of a row in each of sixteen lanes.
INLINE U16 splat_four(const int8_t* codes) {
  uint32_t word;
  memcpy(&word, codes, sizeof word);
  return U16{} + word;
}

INLINE U16 load_line(const uint8_t* p) {
  U16 line;
  memcpy(&line, p, sizeof line);
  return line;
}

INLINE F16 to_floats(I16 v) { return __builtin_convertvector(v, F16); }
