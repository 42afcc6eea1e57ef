// Vectors of sixteen floats, in the compiler's own vector type. One source serves AVX-512, AVX2, NEON and plain C++.
// This header knows numbers only: no shapes, no threads.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "lanes.h"

struct bf16 {
  uint16_t bits;
};

INLINE F16 load(const float* p) { return load_bytes<F16>(p); }

INLINE F16 load(const bf16* p) {
#ifdef __AVX512F__  // one instruction; GCC 12 makes four of the lines below
  return (F16)((U16)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)) << 16);
#elif defined(__AVX2__)
  const auto wide = [](const bf16* p) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
  };
  return {(F8)wide(p), (F8)wide(p + LANES / 2)};
#else
  return (F16)(convert<U16>(load_bytes<H16>(p)) << 16);
#endif
}

INLINE F16 load(const int8_t* p) {
#ifdef __AVX512F__
  return (F16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  const auto wide = [](const int8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); };
  return {_mm256_cvtepi32_ps(wide(p)), _mm256_cvtepi32_ps(wide(p + LANES / 2))};
#else
  return convert<F16>(load_bytes<Lanes<int8_t, 16>>(p));
#endif
}

INLINE void store(float* p, F16 v) { store_bytes(p, v); }

// Rounds to the nearest bfloat16, ties to even, as torch does. NaN stays NaN. The instruction of AVX512-BF16 turns
// numbers below 2^-126 into 0.
INLINE void store(bf16* p, F16 v) {
#ifdef __AVX512BF16__
  const auto rounded = _mm512_cvtneps_pbh((__m512)v);
  memcpy(p, &rounded, sizeof rounded);
#else
  U16 bits = (U16)v;
  U16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = where(v != v, U16{} + 0x7fc0u, rounded);
  store_bytes(p, convert<H16>(rounded));
#endif
}

// v with every lane rounded to bfloat16.
INLINE F16 rounded(F16 v) {
  bf16 rounded[LANES];
  store(rounded, v);
  return load(rounded);
}

// The pair p[0], p[1] in each of sixteen lanes.
INLINE U16 splat_pair(const bf16* p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return U16{} + word;
}

// Each lane of `sums` plus both products of the lane's pairs in x and y. The instruction of AVX512-BF16 does not fuse
// multiplication and addition, and takes subnormals for 0.
INLINE F16 add_products(F16 sums, U16 x, U16 y) {
#ifdef __AVX512BF16__
  return (F16)_mm512_dpbf16_ps((__m512)sums, (__m512bh)x, (__m512bh)y);
#else
  sums += (F16)(x << 16) * (F16)(y << 16);
  return sums + (F16)(x & 0xffff0000u) * (F16)(y & 0xffff0000u);
#endif
}

INLINE float to_float(float x) { return x; }

INLINE float to_float(bf16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

// Writes one number. A bfloat16 is rounded to nearest, ties to even; NaN stays NaN.
INLINE void put(float* p, float x) { *p = x; }

INLINE void put(bf16* p, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  p->bits = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The first n of sixteen lanes, 0 <= n <= 16. `load_some` sets the other lanes to 0; `store_some` does not write them.
template <class T>
INLINE F16 load_some(const T* p, long n) {
  T part[LANES] = {};
  memcpy(part, p, n * sizeof(T));
  return load(part);
}

template <class T>
INLINE void store_some(T* p, F16 v, long n) {
  T part[LANES];
  store(part, v);
  memcpy(p, part, n * sizeof(T));
}

// The sum of all lanes, by one fixed tree of additions, so that no compiler chooses another order.
INLINE float sum(F16 v) {
  const auto eights = halves<F8>(v);
  const auto fours = halves<F4>(eights.low + eights.high);
  const F4 x = fours.low + fours.high;
  return (x[0] + x[2]) + (x[1] + x[3]);
}

INLINE float max(F16 v) {
  const auto eights = halves<F8>(v);
  const auto fours = halves<F4>(eights.low > eights.high ? eights.low : eights.high);
  const F4 x = fours.low > fours.high ? fours.low : fours.high;
  const float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
  return even > odd ? even : odd;
}

// Where one of a and b is NaN, the result is b. GCC 12 makes a comparison and a choice of the last lines.
#if defined(__AVX512F__)
INLINE F16 max(F16 a, F16 b) { return (F16)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE F16 min(F16 a, F16 b) { return (F16)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
INLINE F16 max(F16 a, F16 b) { return {(F8)_mm256_max_ps(a.low, b.low), (F8)_mm256_max_ps(a.high, b.high)}; }
INLINE F16 min(F16 a, F16 b) { return {(F8)_mm256_min_ps(a.low, b.low), (F8)_mm256_min_ps(a.high, b.high)}; }
#else
INLINE F16 max(F16 a, F16 b) { return where(a > b, a, b); }
INLINE F16 min(F16 a, F16 b) { return where(a < b, a, b); }
#endif

// Whether some lane is above the bound. NaN is not.
INLINE bool any_above(F16 v, float bound) {
#ifdef __AVX512F__
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  return max(v) > bound;
#endif
}

// e^x within 2 ulp. The result is 0 for x below -87 (-103.9 with AVX-512), infinity above 88.7, and NaN for NaN.
INLINE F16 exp(F16 x) {
#ifdef __AVX512F__  // beyond these bounds the results are 0 or infinite
  F16 clamped = min(splat(100.f), max(splat(-104.f), x));
#else
  F16 clamped = min(splat(89.f), max(splat(-87.3f), x));
#endif
  const F16 magic = splat(12582912.f);  // 1.5 * 2^23: a sum with it has the nearest integer in its low bits
  F16 shifted = clamped * 1.44269504f + magic;
  F16 n = shifted - magic;
  F16 r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  F16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
#ifdef __AVX512F__
  return (F16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // 2p * 2^(n - 1), as 2^128 is no float. The low bits of `shifted` are n. An exponent of 0 makes a factor of 0.
  return (p + p) * (F16)(((U16)shifted << 23) + (126u << 23));
#endif
}

INLINE F16 sigmoid(F16 x) { return 1.f / (1.f + exp(-x)); }

INLINE F16 tanh(F16 x) { return 2.f * sigmoid(2.f * x) - 1.f; }
