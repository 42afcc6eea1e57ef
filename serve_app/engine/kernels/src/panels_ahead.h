// How products of many rows get their panels: pair after pair, each prepared while the pair before is multiplied.
#pragma once
#include "compact.h"

namespace {

// The two panels of a pair.
struct PanelNumbers {
  long first, second;
};

// Panels 2 i and 2 i + 1, where there are both.
inline auto neighbours(long panels) {
  return [=](long pair) { return PanelNumbers{2 * pair, std::min(2 * pair + 1, panels - 1)}; };
}

// Panels that lie in memory in the form of the product, `apart` bytes apart; numbers_of(pair) are those of a pair. A pair
// comes from memory into the second-level cache while the pair before is multiplied.
template <class NumbersOf>
class FetchedPanels {
 public:
  FetchedPanels(const void* panels, long apart, NumbersOf numbers_of)
      : panels_((const char*)panels), apart_(apart), numbers_of_(numbers_of) {}

  // The pair `pair`. The calls of ahead() from now on, one in each step of each of `blocks` blocks, prepare `next`. If
  // `next` is negative, `pair` is the last one, and they do nothing.
  PanelPair turn_to(long pair, long next, long blocks) {
    const PanelPair coming = pair_at(std::max(0L, next));
    at_ = coming.w, second_ = coming.v - coming.w, lines_ = next < 0 ? 0 : (TILE_BYTES / 64 + blocks - 1) / blocks;
    return pair_at(pair);
  }

  void ahead() {
    for (const char* const end = at_ + lines_ * 64; at_ < end; at_ += 64) {
      __builtin_prefetch(at_, 0, 2);
      __builtin_prefetch(at_ + second_, 0, 2);
    }
  }

 private:
  PanelPair pair_at(long pair) const {
    const auto [first, second] = numbers_of_(pair);
    return {panels_ + first * apart_, panels_ + second * apart_};
  }

  const char* panels_;
  long apart_;
  const NumbersOf numbers_of_;
  const char* at_ = nullptr;
  long second_ = 0, lines_ = 0;  // second_: bytes between the panels of the next pair
};

// Memory for panels that a product widens. It belongs to the calling thread.
inline uint8_t* widened_panels(long bytes) {
  static thread_local Scratch scratch;
  return (uint8_t*)scratch.take((bytes + 3) / 4);
}

// Panels of `weight`, which Weight::Panel widens a tile at a time; numbers_of(pair) are those of a pair. A pair is widened
// while the pair before is multiplied.
template <class Weight, class NumbersOf>
class WidenedPanels {
 public:
  WidenedPanels(const Weight& weight, NumbersOf numbers_of) : weight_(weight), numbers_of_(numbers_of) {}

  // As FetchedPanels::turn_to.
  PanelPair turn_to(long pair, long next, long blocks) {
    if (!room_) room_ = widened_panels(4 * bytes()), prepare(pair);
    while (widened_ < tiles()) widen();
    const char* const here = (const char*)target_;
    target_ = target_ == room_ ? room_ + 2 * bytes() : room_;
    if (next >= 0) prepare(next);
    blocks_ = blocks;
    return {here, here + bytes()};
  }

  void ahead() {
    for (due_ += 2; due_ >= blocks_; due_ -= blocks_)
      if (widened_ < tiles()) widen();
  }

 private:
  long bytes() const { return weight_.steps * TILE_BYTES; }  // of a widened panel
  long tiles() const { return 2 * weight_.steps; }

  void prepare(long pair) {
    const auto [first, second] = numbers_of_(pair);
    source_[0] = typename Weight::Panel(weight_, first), source_[1] = typename Weight::Panel(weight_, second);
    widened_ = due_ = 0;
    if (!target_) target_ = room_;
  }

  void widen() {
    const long panel = widened_ % 2, step = widened_ / 2;
    source_[panel].next(target_ + panel * bytes() + step * TILE_BYTES);
    widened_++;
  }

  const Weight weight_;
  const NumbersOf numbers_of_;
  typename Weight::Panel source_[2] = {};
  uint8_t *room_ = nullptr, *target_ = nullptr;
  long widened_ = 0, due_ = 0, blocks_ = 1;  // due_: twice the calls of ahead() that have not widened a tile yet
};

template <class NumbersOf>
auto panels_ahead(const WholePanels<bf16>& weight, NumbersOf numbers_of) {
  return FetchedPanels(weight.w, weight.panel * (long)sizeof(bf16), numbers_of);
}

template <class NumbersOf>
auto panels_ahead(const CompactWeight& weight, NumbersOf numbers_of) {
  return WidenedPanels<CompactWeight, NumbersOf>(weight, numbers_of);
}

}  // namespace
