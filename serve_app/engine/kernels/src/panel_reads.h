// How a product on vector registers reads the panels of its weights: as they lie in memory, or compact ones, widened where
// they are used or once for many rows.
#pragma once
#include "compact.h"
#include "panels.h"

namespace {

constexpr long AHEAD = 1024;  // bytes of a panel fetched ahead: the hardware fetches ahead only within a page

// Weights at neighbouring inputs, of panels that lie `apart` elements apart.
template <class W>
struct Lines {
  const W* first;
  long apart;
};

// How a product reads NR neighbouring panels. It asks for the next lines, at `inputs(k)` inputs of k, until it has had all.
template <class W>
struct WholeRead {
  const W* w;
  long apart;

  static long inputs(long k) { return k; }
  Lines<W> next() const { return {w, apart}; }
  INLINE void fetch(const W* at) { fetch_weights((const char*)at + AHEAD); }
  template <class Sums, class X>
  bool add_tile(Sums&, const X*, long, long) { return false; }
};

// What all reads have in common that give a tile of each panel at a time.
struct TileRead {
  static long inputs(long) { return BF16_INPUTS; }
  INLINE_MEMBER void fetch(const bf16*) {}
  template <class Sums, class X>
  bool add_tile(Sums&, const X*, long, long) { return false; }
};

// Compact panels, widened tile by tile: to a place of the reader's own, or to where all tiles of a panel stay for others.
template <int NR>
class CompactRead : public TileRead {
 public:
  CompactRead(const CompactWeight& weight, long j, long next, bf16* kept = nullptr)
      : at_(kept ? kept : room_[0]), step_(kept ? TILE_SIZE : 0), apart_(kept ? weight.steps * TILE_SIZE : TILE_SIZE) {
    for (int i = 0; i < NR; i++) panels_[i] = CompactPanel(weight, j + i, next - j);
  }
  CompactRead(const CompactRead&) = delete;

  INLINE_MEMBER Lines<bf16> next() {
    bf16* const here = at_;
#pragma GCC unroll 4
    for (int i = 0; i < NR; i++) panels_[i].next(here + i * apart_);
    at_ += step_;
    return {here, apart_};
  }

 private:
  CompactPanel panels_[NR];
  bf16* at_;
  const long step_, apart_;
  alignas(64) bf16 room_[NR][TILE_SIZE];
};

constexpr long KEPT_BYTES = 1 << 18;  // of widened panels, beside those that come next and the rows

// Compact panels that the first rows widen for all others: `count` from `first` on, then `count` from `first + ups` on.
struct KeptPanels {
  const CompactWeight& weight;
  bf16* room;
  long first, count, ups;

  bf16* at(long j) const {
    const long place = j < first + count ? j - first : j - first - ups + count;
    return room + place * weight.steps * TILE_SIZE;
  }
};

// Compact panels that a thread widens next, fetched into the second-level cache while rows meet those that it keeps: else
// nothing would be read meanwhile.
class ComingPanels {
 public:
  // `count` panels from `first` on and, unless `ups` is 0, from `first + ups` on. `blocks`: of rows that meet the kept ones.
  ComingPanels(const CompactWeight& weight, long first, long count, long ups, long blocks) : blocks_(blocks) {
    const long size = weight.steps * COMPACT_TILE;
    at_ = weight.tiles + first * size, end_ = at_ + count * size;
    if (ups) more_ = at_ + ups * size, more_end_ = end_ + ups * size;
  }

  // Fetches what one block does beside a tile of each of so many panels.
  INLINE_MEMBER void fetch(long panels) {
    const uint8_t* const to = std::min(end_, at_ + (panels * COMPACT_TILE / 64 + blocks_ - 1) / blocks_ * 64);
    for (; at_ < to; at_ += 64) fetch_weights(at_);
    if (at_ == end_ && more_) at_ = more_, end_ = more_end_, more_ = nullptr;
  }

 private:
  const uint8_t *at_, *end_, *more_ = nullptr, *more_end_ = nullptr;
  const long blocks_;
};

// Panels that KeptPanels has widened, and those that are fetched beside.
struct ReadyPanels {
  WholePanels<bf16> panels;
  ComingPanels& coming;
};

template <int NR>
class ReadyRead : public TileRead {
 public:
  ReadyRead(const ReadyPanels& ready, long j)
      : at_(ready.panels.at(j)), apart_(ready.panels.panel), coming_(ready.coming) {}

  INLINE_MEMBER Lines<bf16> next() {
    coming_.fetch(NR);
    const bf16* const here = at_;
    at_ += TILE_SIZE;
    return {here, apart_};
  }

 private:
  const bf16* at_;
  const long apart_;
  ComingPanels& coming_;
};

// Reads NR panels from j on; those from `next` on come after them.
template <int NR, class W>
INLINE WholeRead<W> read_panels(const WholePanels<W>& weight, long j, long) {
  return {weight.at(j), weight.panel};
}

template <int NR>
INLINE CompactRead<NR> read_panels(const CompactWeight& weight, long j, long next) {
  return CompactRead<NR>(weight, j, next);
}

template <int NR>
INLINE CompactRead<NR> read_panels(const KeptPanels& kept, long j, long next) {
  return CompactRead<NR>(kept.weight, j, next, kept.at(j));
}

template <int NR>
INLINE ReadyRead<NR> read_panels(const ReadyPanels& ready, long j, long) {
  return {ready, j};
}

}  // namespace
