// Rows of numbers as int8 codes with one scale each. A code is the nearest integer, ties to even, of a number times
// 127 / the largest magnitude of its row; the scale is that magnitude / 127. So a row's codes depend on no other row,
// nor on the instructions that made them. Activations of quantised products are such rows; so are the keys and values
// of a cache.
#pragma once
#include <algorithm>

#include "vec.h"

constexpr float MAX_CODE = 127.f, LEAST_PEAK = 1e-30f;  // a row with a smaller peak is a row of zeros

// The nearest integer of each lane, ties to even.
INLINE I16 nearest(F16 v) {
#ifdef __AVX512F__
  return (I16)_mm512_cvtps_epi32((__m512)v);
#else
  I16 out;
  for (int i = 0; i < LANES; i++) out[i] = (int32_t)__builtin_rintf(v[i]);
  return out;
#endif
}

// The largest magnitudes of some numbers, lane by lane. As bits they have their order, in which infinity and NaN are
// the last.
class Peaks {
 public:
  INLINE_MEMBER void take(F16 v) {
    const U16 magnitude = (U16)v & 0x7fffffffu;
    peaks_ = peaks_ > magnitude ? peaks_ : magnitude;
  }
  // The largest of all; infinity or NaN if a number is not finite.
  INLINE_MEMBER float highest() const {
    uint32_t highest = 0;
    for (int lane = 0; lane < LANES; lane++) highest = std::max<uint32_t>(highest, peaks_[lane]);
    float peak;
    memcpy(&peak, &highest, sizeof peak);
    return peak;
  }

 private:
  U16 peaks_ = {};
};

// How the numbers of a row with this peak become codes. A row with a number that is not finite has codes 0 and the
// scale NaN, so that all that is computed of it is NaN too.
struct Codes {
  float scale, inverse;  // inverse 0: all codes are 0
  bool empty;

  INLINE_MEMBER explicit Codes(float peak) {
    const float fault = peak - peak;  // 0, or NaN where a number is not finite
    empty = !(peak >= LEAST_PEAK) || fault != fault;
    scale = (empty ? 0.f : peak / MAX_CODE) + fault;
    inverse = empty ? 0.f : MAX_CODE / peak;
  }
  INLINE_MEMBER I16 of(F16 v) const { return empty ? I16{} : nearest(v * inverse); }
};

// Stores sixteen codes as bytes.
INLINE void store(int8_t* p, I16 codes) {
#ifdef __AVX512F__
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)codes));
#else
  const C16 bytes = __builtin_convertvector(codes, C16);
  memcpy(p, &bytes, sizeof bytes);
#endif
}

// The largest magnitude of x [n], or infinity or NaN if a number is not finite.
inline float peak_of(const float* x, long n) {
  Peaks peaks;
  long i = 0;
  for (; i + LANES <= n; i += LANES) peaks.take(load(x + i));
  if (i < n) peaks.take(load_some(x + i, n - i));
  return peaks.highest();
}

// Stores codes [n] of x [n], and returns their scale.
inline float put_codes(int8_t* to, const float* x, long n) {
  const Codes codes(peak_of(x, n));
  long i = 0;
  for (; i + LANES <= n; i += LANES) store(to + i, codes.of(load(x + i)));
  if (i < n) {
    int8_t rest[LANES];
    store(rest, codes.of(load_some(x + i, n - i)));
    memcpy(to + i, rest, n - i);
  }
  return codes.scale;
}
