// Weights of bfloat16 in twelve bits, without loss.
//
// The weights of a panel have few exponents. So the low byte of a weight, with the last bit of its exponent and its
// mantissa, is kept as it is. The high byte, with the sign and the rest of the exponent, is one of sixteen codes that
// the panel chooses. Weights whose high byte has no code are exceptions, and kept in a list.
//
// A packed weight: panels [N/16][K/32] of 768 bytes, K rounded up to 32; for each panel, the sixteen high bytes of its
// codes; for each panel and the end, the number of its first exception (int64); exceptions. A panel's exceptions are in
// the order of its weights, and a last one lies beyond the panel.
//
// 768 bytes are four times 192, each for four lines of a tile (see panels.h): 64 low bytes of the first two lines, 64 low
// bytes of the other two, and 64 bytes of codes, the halves of which belong to both. Of sixteen low bytes, eight belong to
// one line and eight to the other, as the instructions that interleave bytes want.
#pragma once
#include "tiles.h"
#include "weight_fetches.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

constexpr long COMPACT_LINES = 4, COMPACT_GROUP = COMPACT_LINES * 48, COMPACT_TILE = TILE_ROWS * 48;  // bytes
constexpr long COMPACT_AHEAD = 2;  // tiles of a panel fetched ahead
constexpr long PLAIN_AHEAD = 8;    // the same by fetch_ahead
constexpr long CODES = 16;

struct Exception {
  uint32_t place;  // in the panel
  uint16_t bits;
  uint16_t unused;
};

// The place in a tile of the weight whose low byte is byte `i` of the first or second half of a group.
INLINE long compact_place(long group, long half, long i) {
  const long line = group * COMPACT_LINES + half * 2 + i % 16 / 8;
  return line * 2 * LANES + i / 16 * 8 + i % 8;
}

class CompactPanel;

struct CompactWeight {
  using Panel = CompactPanel;

  const uint8_t* tiles;
  const uint8_t* codes;   // [N/16][CODES]
  const int64_t* firsts;  // [N/16 + 1]
  const Exception* exceptions;
  long steps;  // of 32 inputs

  CompactWeight(const void* packed, long n, long k) : tiles((const uint8_t*)packed) {
    const long panels = (n + LANES - 1) / LANES;
    steps = padded_inputs(k, false) / BF16_INPUTS;
    codes = tiles + panels * steps * COMPACT_TILE;
    firsts = (const int64_t*)(codes + panels * CODES);
    exceptions = (const Exception*)(firsts + panels + 1);
  }
};

// The tiles of a panel, one after the other. The panel that its reader takes after it is `after` panels further on.
class CompactPanel {
 public:
  CompactPanel() = default;
  CompactPanel(const CompactWeight& weight, long j, long after = 1)
      : at_(weight.tiles + j * weight.steps * COMPACT_TILE),
        codes_(weight.codes + j * CODES),
        exception_(weight.exceptions + weight.firsts[j]),
        left_(weight.steps),
        jump_((after - 1) * weight.steps * COMPACT_TILE) {}

  // Writes the next tile to `to`, and fetches one that comes later.
  INLINE_MEMBER void next(void* to) {
    widen((uint8_t*)to, tile_ahead(COMPACT_AHEAD));
    for (; exception_->place < end_; exception_++)
      ((bf16*)to)[exception_->place - (end_ - TILE_SIZE)].bits = exception_->bits;
    advance();
  }

#if defined(__AVX512BW__)
  // Whether the next tile has no exceptions. Its lines may then be made one by one where they are used.
  INLINE_MEMBER bool plain() const { return exception_->place >= end_; }

  // The high bytes of the first or second two lines of a group of the next tile.
  INLINE_MEMBER __m512i high_bytes(long group, long half) const {
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)codes_));
    const __m512i both = _mm512_loadu_si512(at_ + group * COMPACT_GROUP + 128);
    const __m512i codes = half ? _mm512_srli_epi16(both, 4) : both;
#ifdef __AVX512VBMI__  // looks up six bits, of which the upper two make no difference, as the table repeats
    return _mm512_permutexvar_epi8(codes, table);
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(CODES - 1)));
#endif
  }

  // One of these two lines.
  INLINE_MEMBER U16 line(long group, long half, bool second, __m512i high) const {
    const __m512i low = _mm512_loadu_si512(at_ + group * COMPACT_GROUP + half * 64);
    return (U16)(second ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high));
  }

  // Fetches a tile of this panel that comes later.
  INLINE_MEMBER void fetch_ahead() const {
    const uint8_t* const ahead = at_ + (left_ > PLAIN_AHEAD ? PLAIN_AHEAD : 0) * COMPACT_TILE;
    for (long line = 0; line < COMPACT_TILE; line += 64) fetch_weights(ahead + line);
  }

  // Goes past a plain tile.
  INLINE_MEMBER void pass() { advance(); }
#endif

 private:
  // Where the tile lies that comes `tiles` after the next one.
  INLINE_MEMBER const uint8_t* tile_ahead(long tiles) const {
    return at_ + tiles * COMPACT_TILE + (left_ > tiles ? 0 : jump_);
  }
  INLINE_MEMBER void advance() { at_ += COMPACT_TILE, end_ += TILE_SIZE, left_--; }

  // Writes the tile at `at_`, without exceptions, and fetches the one at `ahead`.
  INLINE_MEMBER void widen(uint8_t* to, const uint8_t* ahead) const {
#if defined(__AVX512BW__)
    const __m512i high_bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)codes_));
    const __m512i half = _mm512_set1_epi8(CODES - 1);
#pragma GCC unroll 4
    for (long group = 0; group < COMPACT_TILE; group += COMPACT_GROUP, to += 64 * COMPACT_LINES) {
      for (long line = 0; line < COMPACT_GROUP; line += 64) __builtin_prefetch(ahead + group + line, 0, 3);
      const __m512i low = _mm512_loadu_si512(at_ + group), more = _mm512_loadu_si512(at_ + group + 64);
      const __m512i both = _mm512_loadu_si512(at_ + group + 128);
      const __m512i high = _mm512_shuffle_epi8(high_bytes, _mm512_and_si512(both, half));
      const __m512i more_high = _mm512_shuffle_epi8(high_bytes, _mm512_and_si512(_mm512_srli_epi16(both, 4), half));
      _mm512_storeu_si512(to, _mm512_unpacklo_epi8(low, high));
      _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi8(low, high));
      _mm512_storeu_si512(to + 128, _mm512_unpacklo_epi8(more, more_high));
      _mm512_storeu_si512(to + 192, _mm512_unpackhi_epi8(more, more_high));
    }
#elif defined(__AVX2__)
    const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)codes_));
    const __m256i half = _mm256_set1_epi8(CODES - 1);
    for (long line = 0; line < COMPACT_TILE; line += 64) __builtin_prefetch(ahead + line, 0, 3);
    for (long group = 0; group < COMPACT_TILE; group += COMPACT_GROUP, to += 64 * COMPACT_LINES)
      for (long i = 0; i < 64; i += 32) {
        const auto load = [&](long place) { return _mm256_loadu_si256((const __m256i*)(at_ + group + place + i)); };
        const auto store = [&](long line, __m256i v) { _mm256_storeu_si256((__m256i*)(to + line * 64 + i), v); };
        const __m256i low = load(0), more = load(64), both = load(128);
        const __m256i high = _mm256_shuffle_epi8(high_bytes, _mm256_and_si256(both, half));
        const __m256i more_high = _mm256_shuffle_epi8(high_bytes, _mm256_and_si256(_mm256_srli_epi16(both, 4), half));
        store(0, _mm256_unpacklo_epi8(low, high)), store(1, _mm256_unpackhi_epi8(low, high));
        store(2, _mm256_unpacklo_epi8(more, more_high)), store(3, _mm256_unpackhi_epi8(more, more_high));
      }
#else
    uint16_t words[TILE_SIZE];
    (void)ahead;
    for (long group = 0; group < TILE_ROWS / COMPACT_LINES; group++)
      for (long i = 0; i < 64; i++)
        for (long half = 0; half < 2; half++) {
          const uint8_t* const from = at_ + group * COMPACT_GROUP;
          const uint8_t code = half ? from[128 + i] >> 4 : from[128 + i] % CODES;
          words[compact_place(group, half, i)] = from[half * 64 + i] | codes_[code] << 8;
        }
    memcpy(to, words, sizeof words);
#endif
  }

  const uint8_t *at_ = nullptr, *codes_ = nullptr;
  const Exception* exception_ = nullptr;
  uint32_t end_ = TILE_SIZE;  // the place of the first weight after the next tile
  long left_ = 0, jump_ = 0;  // left_: tiles of the panel; jump_: bytes from its end to the panel after it
};

// Two panels that a product takes a tile of each at a time, as FetchedTiles. A tile is widened while the one before is
// multiplied.
class CompactTiles {
 public:
  // Without a second panel, `second` is negative. The next two are `after` panels further.
  CompactTiles(const CompactWeight& weight, long first, long second, long after)
      : w_(weight, first, after), left_(weight.steps), two_(second >= 0) {
    if (two_) v_ = CompactPanel(weight, second, after);
    widen();
  }

  bool two() const { return two_; }
  template <int PANELS>
  INLINE_MEMBER PanelPair next() {
    bf16(&here)[2][TILE_SIZE] = room_[turn_];
    turn_ ^= 1;
    if (left_ > 0) widen();
    return {(const char*)here[0], (const char*)here[1]};
  }

 private:
  INLINE_MEMBER void widen() {
    w_.next(room_[turn_][0]);
    if (two_) v_.next(room_[turn_][1]);
    left_--;
    asm volatile("" ::: "memory");  // GCC does not know that its tile loads read memory
  }

  CompactPanel w_, v_;
  alignas(64) bf16 room_[2][2][TILE_SIZE];
  long left_, turn_ = 0;
  const bool two_;
};

}  // namespace
