// Products of many rows with quantised weights on tile registers, blocked as in many_rows.h. int8 panels are fetched ahead;
// int4 panels are widened to int8 ahead. Sums become outputs where they lie, just before the finish reads them.
#pragma once
#include "int4_product.h"
#include "many_rows.h"
#include "panels_ahead.h"

namespace {

constexpr long INT_MANY = BLOCK;  // products of more rows are computed here

#ifdef __AMX_INT8__
inline bool have_int_tiles() { return have_tiles(); }
#else
inline bool have_int_tiles() { return false; }
#endif

template <class NumbersOf>
auto panels_ahead(const Int8Weight& weight, NumbersOf numbers_of) {
  return FetchedPanels(weight.codes, weight.panel(), numbers_of);
}

template <class NumbersOf>
auto panels_ahead(const Int4Weight& weight, NumbersOf numbers_of) {
  return WidenedPanels<Int4Weight, NumbersOf>(weight, numbers_of);
}

// A finish of sums of codes: makes outputs of them for another finish.
template <class Weight, class NumbersOf, class Finish>
auto after_scaling(const Weight& weight, const QuantizedRows& x, NumbersOf numbers_of, Finish finish) {
  return [=](float* sums, long apart, long row, long pair, long pairs) mutable {
    const I16 zero = I16{} + INT8_ZERO * x.sum(row);
    const auto scale = [&](auto some, long from) {
      constexpr int COUNT = some;
      I16 codes[2 * COUNT];
      long panels[2 * COUNT];
      F16 outputs[2 * COUNT];
      for (int i = 0; i < COUNT; i++) {
        const float* const at = sums + (from + i) * apart;
        const auto [first, second] = numbers_of(pair + from + i);
        codes[2 * i] = load_bytes<I16>(at) - zero, panels[2 * i] = first;
        codes[2 * i + 1] = load_bytes<I16>(at + LANES) - zero, panels[2 * i + 1] = second;
      }
      scale_sums(codes, weight, panels, x, row, outputs);
      for (int i = 0; i < COUNT; i++) {
        float* const at = sums + (from + i) * apart;
        store(at, outputs[2 * i]), store(at + LANES, outputs[2 * i + 1]);
      }
    };
    long i = 0;
    for (; i + GROUPED <= pairs; i += GROUPED) scale(std::integral_constant<int, GROUPED>{}, i);
    for (; i < pairs; i++) scale(std::integral_constant<int, 1>{}, i);
    asm volatile("" ::: "memory");  // GCC must not fuse the last multiplication with an addition of `finish`
    finish(sums, apart, row, pair, pairs);
  };
}

// As multiply_many, for the pairs of panels that `numbers_of` names. finish gets outputs, without the bias.
template <long GROUP, class Weight, class NumbersOf, class Finish>
void multiply_many_quantized([[maybe_unused]] const Weight& weight, [[maybe_unused]] const QuantizedRows& x,
                             [[maybe_unused]] long pairs, [[maybe_unused]] long unit, [[maybe_unused]] int threads,
                             [[maybe_unused]] NumbersOf numbers_of, [[maybe_unused]] Finish finish) {
#ifdef __AMX_INT8__
  multiply_many<Int8Step, GROUP>(ManyRows((const char*)x.row(0), x.rows, x.steps, x.block_bytes()), pairs, unit, threads,
                                 panels_ahead(weight, numbers_of), after_scaling(weight, x, numbers_of, finish));
#endif
}

}  // namespace
