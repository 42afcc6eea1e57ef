// Products of many rows with quantised weights on tile registers, blocked as in many_rows.h. int8 panels are fetched ahead;
// int4 panels are widened to int8 ahead. Sums become outputs where they lie, just before the finish reads them.
#pragma once
#include "int4_product.h"
#include "many_rows.h"

namespace {

constexpr long INT_MANY = BLOCK;  // products of more rows are computed here

#ifdef __AMX_INT8__
inline bool have_int_tiles() { return have_tiles(); }
#else
inline bool have_int_tiles() { return false; }
#endif

// Memory for panels that a product widens. It belongs to the calling thread.
inline uint8_t* widened_panels(long bytes) {
  static thread_local Scratch scratch;
  return (uint8_t*)scratch.take((bytes + 3) / 4);
}

// The two panels of a pair.
struct PanelNumbers {
  long first, second;
};

// Panels of int4, as int8 in memory of the calling thread; numbers_of(pair) are those of a pair. A pair is widened while
// the pair before is multiplied.
template <class NumbersOf>
class WidenedPanels {
 public:
  WidenedPanels(const Int4Weight& weight, NumbersOf numbers_of) : weight_(weight), numbers_of_(numbers_of) {}

  // As FetchedPanels::turn_to.
  PanelPair turn_to(long pair, long next, long blocks) {
    if (!room_) room_ = widened_panels(4 * bytes()), prepare(pair);
    while (widened_ < tiles()) widen();
    const char* const here = (const char*)target_;
    target_ = target_ == room_ ? room_ + 2 * bytes() : room_;
    prepare(next);
    blocks_ = blocks;
    return {here, here + bytes()};
  }

  void ahead() {
    for (due_ += 2; due_ >= blocks_; due_ -= blocks_)
      if (widened_ < tiles()) widen();
  }

 private:
  static constexpr long AHEAD = 8 * INT4_STEP;

  long bytes() const { return weight_.steps * TILE_BYTES; }  // of a widened panel
  long tiles() const { return 2 * weight_.steps; }

  void prepare(long pair) {
    const auto [first, second] = numbers_of_(pair);
    source_[0] = weight_.codes + first * weight_.panel(), source_[1] = weight_.codes + second * weight_.panel();
    widened_ = due_ = 0;
    if (!target_) target_ = room_;
  }

  void widen() {
    const long panel = widened_ % 2, step = widened_ / 2;
    const uint8_t* const from = source_[panel] + step * INT4_STEP;
    for (long at = 0; at < INT4_STEP; at += 64) __builtin_prefetch(from + AHEAD + at, 0, 2);
    widen_tile(from, target_ + panel * bytes() + step * TILE_BYTES);
    widened_++;
  }

  const Int4Weight weight_;
  const NumbersOf numbers_of_;
  const uint8_t* source_[2] = {};
  uint8_t *room_ = nullptr, *target_ = nullptr;
  long widened_ = 0, due_ = 0, blocks_ = 1;  // due_: twice the calls of ahead() that have not widened a tile yet
};

template <class NumbersOf>
auto panels_ahead(const Int8Weight& weight, NumbersOf numbers_of) {
  return FetchedPanels([=](long pair) {
    const auto [first, second] = numbers_of(pair);
    return PanelPair{(const char*)weight.codes + first * weight.panel(),
                     (const char*)weight.codes + second * weight.panel()};
  });
}

template <class NumbersOf>
auto panels_ahead(const Int4Weight& weight, NumbersOf numbers_of) {
  return WidenedPanels(weight, numbers_of);
}

// A finish of sums of codes: makes outputs of them for another finish.
template <class NumbersOf, class Finish>
auto after_scaling(const float* scales, const QuantizedRows& x, NumbersOf numbers_of, Finish finish) {
  return [=](float* sums, long apart, long row, long pair, long pairs) mutable {
    const I16 zero = I16{} + INT8_ZERO * x.sum(row);
    const F16 scale = splat(x.scale(row));
    for (long i = 0; i < pairs; i++) {
      float* const at = sums + i * apart;
      const auto [first, second] = numbers_of(pair + i);
      I16 low, high;
      memcpy(&low, at, sizeof low), memcpy(&high, at + LANES, sizeof high);
      store(at, to_floats(low - zero) * scale * load(scales + first * LANES));
      store(at + LANES, to_floats(high - zero) * scale * load(scales + second * LANES));
    }
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
                                 panels_ahead(weight, numbers_of), after_scaling(weight.scales, x, numbers_of, finish));
#endif
}

// Panels 2 i and 2 i + 1, where there are both.
inline auto neighbours(long panels) {
  return [=](long pair) { return PanelNumbers{2 * pair, std::min(2 * pair + 1, panels - 1)}; };
}

}  // namespace
