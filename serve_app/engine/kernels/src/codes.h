// Rows of numbers as integer codes with one scale each. A code is the nearest integer, ties to even, of a number times
// most / the largest magnitude of its row, where `most` is the code of that magnitude; the scale is that magnitude /
// most. So a row's codes depend on no other row, nor on the instructions that made them. The keys and values of a cache
// have 127 as the most. So have activations of quantised products, but for rows with a few large numbers.
#pragma once
#include <algorithm>

#include "vec.h"

constexpr float MAX_CODE = 127.f, LEAST_PEAK = 1e-30f;  // a row with a smaller peak is a row of zeros
constexpr float MOST_CODE = 257 * MAX_CODE;              // 127 * 256 + 127: two bytes
// Codes of one byte reach at least so many times the mean magnitude of a row. Those of normal numbers reach about six
// times; hidden states of real models have single numbers of hundreds.
constexpr float REACH = 8.f;

// The nearest integer of each lane, ties to even.
INLINE I16 nearest(F16 v) {
#ifdef __AVX512F__
  return (I16)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  return {(decltype(I16::low))_mm256_cvtps_epi32(v.low), (decltype(I16::low))_mm256_cvtps_epi32(v.high)};
#else
  int32_t each[LANES];
  for (int i = 0; i < LANES; i++) each[i] = (int32_t)__builtin_rintf(v[i]);
  return load_bytes<I16>(each);
#endif
}

// The largest magnitudes of some numbers, lane by lane. As bits they have their order, in which infinity and NaN are
// the last.
class Peaks {
 public:
  INLINE_MEMBER void take(F16 v) {
    const U16 magnitude = (U16)v & 0x7fffffffu;
    peaks_ = where(peaks_ > magnitude, peaks_, magnitude);
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

  INLINE_MEMBER explicit Codes(float peak, float most = MAX_CODE) {
    const float fault = peak - peak;  // 0, or NaN where a number is not finite
    empty = !(peak >= LEAST_PEAK) || fault != fault;
    scale = (empty ? 0.f : peak / most) + fault;
    inverse = empty ? 0.f : most / peak;
  }
  INLINE_MEMBER I16 of(F16 v) const { return empty ? I16{} : nearest(v * inverse); }
};

// Stores sixteen codes as bytes.
INLINE void store(int8_t* p, I16 codes) {
#ifdef __AVX512F__
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)codes));
#else
  const C16 bytes = to_bytes(codes);
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

// The largest magnitude of x [n], or infinity or NaN if a number is not finite, and about the sum of all magnitudes.
struct Magnitudes {
  float peak, total;
};

inline Magnitudes magnitudes_of(const float* x, long n) {
  Peaks peaks;
  F16 totals[4] = {};  // so that no sum waits for the one before
  const auto take = [&](F16 v, F16& total) { peaks.take(v), total += (F16)((U16)v & 0x7fffffffu); };
  long i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (int j = 0; j < 4; j++) take(load(x + i + j * LANES), totals[j]);
  for (; i + LANES <= n; i += LANES) take(load(x + i), totals[0]);
  if (i < n) take(load_some(x + i, n - i), totals[0]);
  return {peaks.highest(), sum((totals[0] + totals[1]) + (totals[2] + totals[3]))};
}

// Whether REACH times the mean magnitude of n numbers is certainly above the largest one, however they are added up.
inline bool within_reach(Magnitudes of, long n) {
  constexpr float MARGIN = 1.001f;  // more than what rounding moves the total, or the mean of codes
  const float reach = of.total * REACH;
  return reach > of.peak * n * MARGIN && reach < __builtin_inff();
}

// The code of the largest magnitude of x [n]: 127, or more, so that 127 is REACH times the mean magnitude. The mean is that
// of integers, so it does not depend on the order of a sum.
inline float most_of(const float* x, long n, Magnitudes of) {
  if (within_reach(of, n)) return MAX_CODE;
  const Codes codes(of.peak, MOST_CODE);
  if (codes.empty) return MAX_CODE;
  U16 sums = {};
  const auto take = [&](F16 v) {
    const I16 code = codes.of(v);
    sums += (U16)where(code < 0, -code, code);
  };
  long i = 0;
  for (; i + LANES <= n; i += LANES) take(load(x + i));
  if (i < n) take(load_some(x + i, n - i));
  uint64_t total = 0;
  for (int lane = 0; lane < LANES; lane++) total += sums[lane];
  const float mean = (float)total / (float)n;
  return MAX_CODE * std::clamp(MOST_CODE / (REACH * mean), 1.f, MOST_CODE / MAX_CODE);
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
