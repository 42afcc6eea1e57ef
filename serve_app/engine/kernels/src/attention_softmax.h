// The softmax of attention: scores of some rows and one tile of keys become weights. Every row is computed alone, in an
// order that depends on its keys only, so that a row gets the same bits in every task.
#pragma once
#include "attention_state.h"

namespace {

// The form of the weights that softmax computes: float32, float32 rounded to bfloat16, or bfloat16.
enum class Weights { FLOATS, ROUNDED, HALVES };

constexpr float LOG2_E = 1.44269504f;

// A row's sums keep their top while no score is more than this above it, so they seldom shrink. A weight is e^SLACK at
// most.
constexpr float SLACK = 8;

// exp(score - top), where `base` is top * LOG2_E: within 8e-5, for weights that are rounded to bfloat16. The polynomial
// is the one of least relative error for 2^x from 0 to 1.
INLINE F16 short_exp(F16 score, F16 base) {
#ifdef __AVX512DQ__
  const __m512 x = _mm512_fmsub_ps((__m512)score, _mm512_set1_ps(LOG2_E), (__m512)base);
  const __m512 r = _mm512_reduce_ps(x, 1);  // x minus the integer below; 0 for -INF
  __m512 p = _mm512_set1_ps(0.07802452f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.22606716f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69583354f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.99992522f));
  return (F16)_mm512_scalef_ps(p, x);
#else
  return exp(score - base / LOG2_E);
#endif
}

// The weight of a key, where `base` is the row's top as `base_of` gives it.
template <Weights FORM>
INLINE F16 weight_of(F16 score, F16 base) {
  return FORM == Weights::FLOATS ? exp(score - base) : short_exp(score, base);
}

template <Weights FORM>
INLINE F16 base_of(F16 top) {
  const F16 finite = where(top == -INF, F16{}, top);  // a row that has seen no key: all its weights are 0
  return FORM == Weights::FLOATS ? finite : finite * LOG2_E;
}

// The keys of one tile that a row sees: lo <= key < hi, counted in the tile. None if lo >= hi.
struct Seen {
  long lo, hi;
};

// The scales of the keys and the values of one tile [padded], in a cache of codes; else null. Those of values that no
// row sees are 0.
struct Scales {
  const float *keys, *values;
};

// One tile of keys for some rows, in the three steps of an online softmax.
template <Weights FORM>
struct SoftmaxTile {
  float* scores;  // [rows, padded], rows `stride` apart; the weights of a row replace its scores from their first byte
  long stride, padded;
  Scales scales;
  float *base, *factor;  // [rows, a multiple of sixteen]: top as `base_of` gives it, and the factor of earlier sums

  // Multiplies the scores of a row by the scales of their keys, and caps them. cap 0: none.
  void finish(long row, float cap) const {
    float* const at = scores + row * stride;
    if (scales.keys)
      for (long k = 0; k < padded; k += LANES) store(at + k, load(at + k) * load(scales.keys + k));
    if (cap > 0)
      for (long k = 0; k < padded; k += LANES) store(at + k, tanh(load(at + k) / cap) * cap);
  }

  // Masks the scores of a row. Returns the largest one if it is above `bound`, else -INF.
  float largest_above(float bound, long row, Seen seen) const {
    float* const at = scores + row * stride;
    if (seen.lo > 0) std::fill(at, at + std::min(seen.lo, padded), -INF);
    if (seen.hi < padded) std::fill(at + std::max(0L, seen.hi), at + padded, -INF);
    F16 best = load(at), other = splat(-INF);
    for (long k = LANES; k < padded; k += 2 * LANES) {
      other = max(other, load(at + k));
      if (k + LANES < padded) best = max(best, load(at + k + LANES));
    }
    const F16 lanes = max(best, other);
    return any_above(lanes, bound) ? max(lanes) : -INF;
  }

  // Raises the tops of the rows that have a higher one in `tops` [rows, a multiple of sixteen]; fills `base` and
  // `factor`.
  void raise(long rows, const float* tops, State s) const {
    for (long r = 0; r < rows; r += LANES) {
      const F16 before = load(s.top + r), after = max(load(tops + r), before), above = base_of<FORM>(after);
      store(s.top + r, after);
      store(base + r, above);
      store(factor + r, where(after > before, weight_of<FORM>(before, above), splat(1.f)));
    }
  }

  // Multiplies the sums of values by their factors.
  void shrink(long rows, State s, long width) const {
    for (long r = 0; r < rows; r++)
      if (factor[r] != 1.f)
        for (long d = r * width; d < (r + 1) * width; d += LANES) store(s.out + d, load(s.out + d) * factor[r]);
  }

  // The weights of a row, after `raise`.
  void weigh(long row, State s) const { weigh(row, splat(base[row]), splat(factor[row]), s); }

  // The same as all steps above for one row alone, which is faster for a few rows.
  void do_row(long row, Seen seen, State s, long width) const {
    const F16 before = splat(s.top[row]);
    const float top = largest_above(s.top[row] + SLACK, row, seen);
    const F16 above = base_of<FORM>(top > -INF ? splat(top) : before);
    F16 shrunk = splat(1.f);
    if (top > -INF) {
      shrunk = weight_of<FORM>(before, above);
      s.top[row] = top;
      for (long d = row * width; d < (row + 1) * width; d += LANES) store(s.out + d, load(s.out + d) * shrunk);
    }
    weigh(row, above, shrunk, s);
  }

  void weigh(long row, F16 above, F16 shrunk, State s) const {
    scales.values ? weigh<true>(row, above, shrunk, s) : weigh<false>(row, above, shrunk, s);
  }

  // Computes the weights of a row and adds them to its total. The sums of values take them times the values' scales.
  template <bool SCALED>
  void weigh(long row, F16 above, F16 shrunk, State s) const {
    float* const at = scores + row * stride;
    F16 sums = {}, others = {};
    const auto next = [&](long k, F16& to) {
      const F16 p = weight_of<FORM>(load(at + k), above), scaled = SCALED ? p * load(scales.values + k) : p;
      FORM == Weights::HALVES ? store((bf16*)at + k, scaled)
                              : store(at + k, FORM == Weights::ROUNDED ? rounded(scaled) : scaled);
      to += p;
    };
    long k = 0;
    for (; k + 2 * LANES <= padded; k += 2 * LANES) next(k, sums), next(k + LANES, others);
    if (k < padded) next(k, sums);
    float* const total = s.total + row * LANES;
    store(total, load(total) * shrunk + (sums + others));
  }
};

}  // namespace
