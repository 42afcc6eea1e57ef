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

// Four codes of a row, of inputs that lie side by side, in 256ths: what their bytes leave. Inputs 4 * line to 4 * line + 3.
struct CoarseCodes {
  uint32_t line, codes;
};

// Blocks of sixteen rows: their scales [16], the sums of their codes [16], the same of their coarse codes [16] and how
// many of these there are [16], then the codes as tiles of AMX [k/64][16][64]. If `grouped`, as int4 weights ask, then the
// sums of every sixteen codes [16][k/16]. Last, the coarse codes [16][k/4].
//
// A code is a byte plus 256 times a coarse code. Few inputs of few rows have one that is not 0, and only these are kept.
struct QuantizedRows {
  static constexpr long STRIDE = INT_TILE_ROWS * INT_INPUTS;  // from a row's codes to those at its next 64 inputs
  static constexpr long HEADER = INT_TILE_ROWS * 4 * 4;       // bytes before the codes of a block
  static constexpr int32_t COARSE = 256;

  char* blocks;
  long rows, steps;
  bool grouped;

  QuantizedRows(const float* inputs, long rows, long k, bool grouped)
      : blocks((char*)inputs), rows(rows), steps(int_steps(k)), grouped(grouped) {}

  // Floats of memory for all rows.
  long room() const { return (rows + INT_TILE_ROWS - 1) / INT_TILE_ROWS * block_bytes() / 4; }
  long row_groups() const { return steps * (INT_INPUTS / INT4_INPUTS); }
  long row_lines() const { return steps * (INT_INPUTS / 4); }
  long block_bytes() const { return coarse_at() + INT_TILE_ROWS * row_lines() * (long)sizeof(CoarseCodes); }

  char* block(long r) const { return blocks + r / INT_TILE_ROWS * block_bytes(); }
  float& scale(long r) const { return ((float*)block(r))[r % INT_TILE_ROWS]; }
  int32_t& sum(long r) const { return ((int32_t*)(block(r) + INT_TILE_ROWS * 4))[r % INT_TILE_ROWS]; }
  int32_t& coarse_sum(long r) const { return ((int32_t*)(block(r) + INT_TILE_ROWS * 8))[r % INT_TILE_ROWS]; }
  int32_t& coarse_count(long r) const { return ((int32_t*)(block(r) + INT_TILE_ROWS * 12))[r % INT_TILE_ROWS]; }
  CoarseCodes* coarse(long r) const { return (CoarseCodes*)(block(r) + coarse_at()) + r % INT_TILE_ROWS * row_lines(); }
  // Calls f(line, codes) with every coarse code of a row. A thread that lost its core may read on while others write the rows
  // of the next product. Its outputs are dropped, but nothing it reads may lead it out of the weight.
  template <class F>
  void each_coarse(long r, F&& f) const {
    const CoarseCodes* const from = coarse(r);
    const long count = std::clamp((long)coarse_count(r), 0L, row_lines());
    for (long i = 0; i < count; i++) f(std::min((long)from[i].line, row_lines() - 1), from[i].codes);
  }
  // The codes of a row at its first 64 inputs.
  int8_t* row(long r) const { return (int8_t*)block(r) + HEADER + r % INT_TILE_ROWS * INT_INPUTS; }
  // The sums of every sixteen codes of a row, times -2^16.
  uint32_t* group_sums(long r) const {
    return (uint32_t*)(block(r) + HEADER + steps * STRIDE) + r % INT_TILE_ROWS * row_groups();
  }

 private:
  long coarse_at() const { return HEADER + steps * STRIDE + (grouped ? INT_TILE_ROWS * 4 * row_groups() : 0); }
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
    const C16 bytes = to_bytes(codes[i]);
    memcpy(to + i * LANES, &bytes, sizeof bytes);
    if (sums) sums[i] = -(uint32_t)sum(codes[i]) << 16;
  }
#endif
}

INLINE bool any(I16 v) {
#ifdef __AVX512F__
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#else
  const auto eights = halves<I8>(v);
  const auto fours = halves<I4>(eights.low | eights.high);
  const I4 x = fours.low | fours.high;
  return (x[0] | x[1] | x[2] | x[3]) != 0;
#endif
}

// Takes the coarse codes out of the codes of 64 inputs, which then fit a byte each, and appends them to `to`, which has
// `count`. `line`: of the first four inputs.
INLINE void take_coarse(I16 (&codes)[4], uint32_t line, CoarseCodes* to, int32_t& count, I16& sums) {
  I16 coarse[4], all = {};
  for (int i = 0; i < 4; i++) coarse[i] = (codes[i] + QuantizedRows::COARSE / 2) >> 8, all = all | coarse[i];
  if (!any(all)) return;
  for (int i = 0; i < 4; i++, line += LANES / 4) {
    int8_t bytes[LANES];
    store(bytes, coarse[i]);
    uint32_t fours[LANES / 4];
    memcpy(fours, bytes, sizeof fours);
    codes[i] -= coarse[i] * QuantizedRows::COARSE, sums += coarse[i];
    for (uint32_t j = 0; j < LANES / 4; j++)
      if (fours[j]) to[count++] = {line + j, fours[j]};
  }
}

// Quantises x [k] to row `r`.
inline void quantize_row(const float* x, long k, long r, const QuantizedRows& to) {
  const Magnitudes magnitudes = magnitudes_of(x, k);
  const float most = most_of(x, k, magnitudes);
  const Codes coded(magnitudes.peak, most);
  const bool wide = most > MAX_CODE;
  to.scale(r) = coded.scale;
  int8_t* codes = to.row(r);
  CoarseCodes* const coarse = to.coarse(r);
  int32_t count = 0;
  uint32_t line = 0;
  I16 coarse_sums = {};
  uint32_t* group_sums = to.grouped ? to.group_sums(r) : nullptr;
  I16 sums = {};
  const auto step = [&](auto&& at) {
    I16 four[4];
    for (int i = 0; i < 4; i++) four[i] = coded.of(at(i));
    if (wide) take_coarse(four, line, coarse, count, coarse_sums);
    for (int i = 0; i < 4; i++) sums += four[i];
    line += INT_INPUTS / 4;
    store_codes(four, codes, group_sums);
    codes += to.STRIDE;
    if (group_sums) group_sums += INT_INPUTS / INT4_INPUTS;
  };
  long i = 0;
  for (; i + INT_INPUTS <= k; i += INT_INPUTS) step([&](int j) { return load(x + i + j * LANES); });
  if (i < k)
    step([&](int j) { return load_some(x + i + j * LANES, std::clamp(k - i - j * LANES, 0L, LANES)); });
  to.sum(r) = sum(sums), to.coarse_sum(r) = sum(coarse_sums), to.coarse_count(r) = count;
}

#ifdef __AVX2__
// f(half of sums, half of a, half of b) of both halves.
template <class F, class S, class V>
INLINE S on_halves(F f, S sums, V a, V b) {
  const auto [low, high] = halves<__m256i>(sums);
  const auto [a_low, a_high] = halves<__m256i>(a);
  const auto [b_low, b_high] = halves<__m256i>(b);
  return joined<S>(f(low, a_low, b_low), f(high, a_high, b_high));
}
#endif

// Each lane of `sums` plus four products: unsigned bytes of a lane of `w` with signed bytes of the same lane of `x`.
INLINE I16 add_four(I16 sums, U16 w, U16 x) {
#if defined(__AVX512VNNI__)
  return (I16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
  return on_halves(
      [](__m256i to, __m256i weights, __m256i rows) {
#ifdef __AVXVNNI__
        return _mm256_dpbusd_avx_epi32(to, weights, rows);
#else  // sixteen bits hold every factor, so no sum saturates
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(0xff)),
                                               _mm256_srai_epi16(_mm256_slli_epi16(rows, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(rows, 8));
        return _mm256_add_epi32(to, _mm256_add_epi32(even, odd));
#endif
      },
      sums, w, x);
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
  return on_halves(
      [](__m256i to, __m256i left, __m256i right) { return _mm256_add_epi32(to, _mm256_madd_epi16(left, right)); },
      sums, a, b);
#else
  return sums + ((I16)a << 16 >> 16) * ((I16)b << 16 >> 16) + ((I16)a >> 16) * ((I16)b >> 16);
#endif
}

// The same of codes of weights, as `as_codes` makes them of stored bytes. Sums are then those of stored bytes less
// CODES_ZERO for each code of the row.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
constexpr int32_t CODES_ZERO = 128;
INLINE U16 as_codes(U16 stored) { return stored ^ 0x80808080u; }
INLINE I16 add_codes(I16 sums, U16 w, U16 x) {
  return on_halves(
      [](__m256i to, __m256i weights, __m256i rows) {  // two products have 2 * 127 * 128 at most, which is no overflow
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(rows), _mm256_sign_epi8(weights, rows));
        return _mm256_add_epi32(to, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      },
      sums, w, x);
}
#else
constexpr int32_t CODES_ZERO = 0;
INLINE U16 as_codes(U16 stored) { return stored; }
INLINE I16 add_codes(I16 sums, U16 w, U16 x) { return add_four(sums, w, x); }
#endif

// Four codes of a row in each of sixteen lanes.
INLINE U16 splat_four(const int8_t* codes) {
  uint32_t word;
  memcpy(&word, codes, sizeof word);
  return U16{} + word;
}

INLINE U16 load_line(const uint8_t* p) {
  return load_bytes<U16>(p);
}

INLINE F16 to_floats(I16 v) { return convert<F16>(v); }
