// Products of int4 weights with rows of int8. A weight is q * step - least: q has four bits, and every sixteen inputs of
// an output share a step from 0 to 17 and a least from 0 to 127. So weights are int8 with a scale for each output, and
// their products are those of int8_product.h, bit for bit.
//
// A packed weight: panels [N/16][K/64] of 640 bytes, K rounded up to 64, then N scales, rounded up to 16. The 640 bytes
// are eight lines of q, then four groups of sixteen inputs with a step and a least for each output. A byte of line l has
// the q of line l of int8 in its low half, and that of line l + 8 in its high half.
#pragma once
#include "int8_product.h"

namespace {

constexpr long INT4_LINES = 8, INT4_QUADS = 4;  // lines of a step, and lines that a group of inputs takes
constexpr long INT4_CODES = INT4_LINES * 64, INT4_STEP = INT4_CODES + INT_INPUTS / INT4_INPUTS * 2 * LANES;
constexpr long TILES_AHEAD = 4096;  // bytes of a panel fetched ahead of tile registers
constexpr uint32_t LOW_HALVES = 0x0f0f0f0fu;

class Int4Panel;

struct Int4Weight {
  using Panel = Int4Panel;
  static constexpr bool PER_OUTPUT = true;

  const uint8_t* codes;
  const float* scales;
  long steps;

  Int4Weight(const void* packed, long n, long k) : codes((const uint8_t*)packed), steps(int_steps(k)) {
    scales = (const float*)(codes + (n + LANES - 1) / LANES * panel());
  }
  long panel() const { return steps * INT4_STEP; }  // bytes
};

// The steps and leasts of a group, each in sixteen bits: step | least << 16 in each lane.
INLINE U16 load_group(const uint8_t* p) {
#ifdef __AVX512BW__
  return (U16)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p));
#else
  return (U16)convert<W32>(load_bytes<Lanes<uint8_t, 32>>(p));
#endif
}

// As that of Int8Weight.
struct CoarseGroup {
  const Int4Weight& weight;

  static I16 zero(const QuantizedRows&, long) { return I16{}; }
  const uint8_t* panel(long j) const { return weight.codes + j * weight.panel(); }
  INLINE I16 add(I16 sums, const uint8_t* panel, long at, uint32_t codes) {
    const long step = at / INT_TILE_ROWS, line = at % INT_TILE_ROWS, group = line / INT4_QUADS;
    const uint8_t* const w = panel + step * INT4_STEP;
    const U16 q = load_line(w + line % INT4_LINES * 64) >> (line < INT4_LINES ? 0 : 4) & LOW_HALVES;
    const int32_t sum = (int8_t)codes + (int8_t)(codes >> 8) + (int8_t)(codes >> 16) + (int8_t)(codes >> 24);
    const U16 products = (U16)add_four(I16{}, q, U16{} + codes);
    return add_two(sums, (products & 0xffffu) | -(uint32_t)sum << 16, load_group(w + INT4_CODES + group * 2 * LANES));
  }
};

INLINE CoarseGroup coarse_line(const Int4Weight& weight) { return {weight}; }

// Sums of q times codes, of the sixteen inputs of a group.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
using GroupSums = U16;  // two of sixteen bits in each lane: no more than 4 * 2 * 15 * 128

INLINE GroupSums add_group(GroupSums sums, U16 q, U16 x) {
  return on_halves(
      [](__m256i to, __m256i q, __m256i rows) { return _mm256_add_epi16(to, _mm256_maddubs_epi16(q, rows)); }, sums, q, x);
}

// total + the sums of two groups times their steps, less their leasts times the sums of the row's codes. `sums`: of the
// first group; those of the second are two further on.
INLINE I16 add_groups(I16 total, GroupSums low, GroupSums high, U16 first, U16 second, const uint32_t* sums) {
  total = add_two(total, low, first << 16 | (first & 0xffffu));
  total = add_two(total, high, second << 16 | (second & 0xffffu));
  return add_two(total, U16{} + (sums[0] >> 16 | sums[2]), first >> 16 | (second & 0xffff0000u));
}
#else
using GroupSums = I16;

INLINE GroupSums add_group(GroupSums sums, U16 q, U16 x) { return add_four(sums, q, x); }

INLINE I16 add_groups(I16 total, GroupSums low, GroupSums high, U16 first, U16 second, const uint32_t* sums) {
  total = add_two(total, ((U16)low & 0xffffu) | sums[0], first);
  return add_two(total, ((U16)high & 0xffffu) | sums[2], second);
}
#endif

// MR rows from `row` on at panel `j`: out [MR, 16], rows `stride` apart.
template <int MR>
void int4_vectors(const Int4Weight& weight, const QuantizedRows& x, long row, long j, Share share, float* out,
                  long stride) {
  const uint8_t* w = weight.codes + j * weight.panel();
  const int8_t* codes = x.row(row);
  I16 total[MR][1] = {};
  for (long step = 0; step < x.steps; step++, codes += x.STRIDE, w += INT4_STEP) {
    for (long line = share.first; line < share.last; line++) share.fetch(w + line * 64);
    for (long at = INT4_CODES; at < INT4_STEP; at += 64) fetch_weights(w + at + QUANTIZED_AHEAD);
#pragma GCC unroll 2
    for (long group = 0; group < 2; group++) {  // and group + 2, whose q are in the high halves
      GroupSums low[MR] = {}, high[MR] = {};
#pragma GCC unroll 4
      for (long line = group * INT4_QUADS; line < (group + 1) * INT4_QUADS; line++) {
        const U16 both = load_line(w + line * 64);
        fetch_weights(w + line * 64 + QUANTIZED_AHEAD);
        const U16 low_q = both & LOW_HALVES, high_q = both >> 4 & LOW_HALVES;
#pragma GCC unroll 8
        for (int r = 0; r < MR; r++) {
          const int8_t* const at = codes + r * INT_INPUTS + line * 4;
          const U16 a = splat_four(at), d = splat_four(at + INT_INPUTS / 2);
          low[r] = add_group(low[r], low_q, a);
          high[r] = add_group(high[r], high_q, d);
        }
      }
      const uint8_t* const groups = w + INT4_CODES + group * 2 * LANES;
      const U16 first = load_group(groups), second = load_group(groups + 2 * 2 * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) {
        const uint32_t* const sums = x.group_sums(row + r) + step * (INT_INPUTS / INT4_INPUTS) + group;
        total[r][0] = add_groups(total[r][0], low[r], high[r], first, second, sums);
      }
    }
  }
  for (int r = 0; r < MR; r++) {
    F16 output[1];
    scale_sums(total[r], weight, {j}, x, row + r, output);
    store(out + r * stride, output[0]);
  }
}

// Rows of a block, whose sums stay in registers: three for each row.
constexpr long INT4_ROWS = REGISTERS < 32 ? 2 : 8;

// `count` rows, from MR to INT4_ROWS, at one panel after another: a core reads them faster than side by side.
template <int MR>
void int4_panels(const Int4Weight& weight, const QuantizedRows& x, long row, long count, long j, long panels, Share share,
                 float* out, long stride) {
  if (count == MR)
    for (long c = 0; c < panels; c++) int4_vectors<MR>(weight, x, row, j + c, share, out + c * LANES, stride);
  else if constexpr (MR < INT4_ROWS)
    int4_panels<MR + 1>(weight, x, row, count, j, panels, share, out, stride);
}

// The same as on_vectors of int8.
inline void on_vectors(const Int4Weight& weight, const QuantizedRows& x, long row, long count, long j, long panels,
                       long offset, float* out, long stride) {
  const long blocks = (count + INT4_ROWS - 1) / INT4_ROWS;
  for (long block = 0; block < blocks; block++) {
    const long r = block * INT4_ROWS;
    const Share share(offset, INT4_STEP / 64, block, blocks);
    int4_panels<1>(weight, x, row + r, std::min(INT4_ROWS, count - r), j, panels, share, out + r * stride, stride);
  }
}

// 640 bytes of int4 -> the same tile of int8, whose bytes are weights + 128.
INLINE void widen_tile(const uint8_t* from, uint8_t* to) {
#pragma GCC unroll 2
  for (long group = 0; group < 2; group++) {
    const uint8_t* const groups = from + INT4_CODES + group * 2 * LANES;
    const U16 first = load_group(groups), second = load_group(groups + 2 * 2 * LANES);
    const W32 low_step = (W32)(first << 16 | (first & 0xffffu)), high_step = (W32)(second << 16 | (second & 0xffffu));
    const U16 low_zero = (INT8_ZERO - (first >> 16)) * 0x01010101u, high_zero = (INT8_ZERO - (second >> 16)) * 0x01010101u;
#pragma GCC unroll 4
    for (long line = group * INT4_QUADS; line < (group + 1) * INT4_QUADS; line++) {
      // A product of a q and a step has eight bits. Products of odd bytes are made in the upper halves of words.
      const auto wide = [](U16 q, W32 step, U16 zero) {
        const U16 even = (U16)((W32)(q & 0x000f000fu) * step);
        const U16 odd = (U16)((W32)(q & 0x0f000f00u) * step);
        return (U16)((B64)(even | odd) + (B64)zero);
      };
      const U16 both = load_line(from + line * 64);
      const U16 low = wide(both, low_step, low_zero), high = wide(both >> 4, high_step, high_zero);
      memcpy(to + line * 64, &low, sizeof low);
      memcpy(to + (line + INT4_LINES) * 64, &high, sizeof high);
    }
  }
}

// The tiles of a panel as int8, one after the other.
class Int4Panel {
 public:
  Int4Panel() = default;
  Int4Panel(const Int4Weight& weight, long j) : at_(weight.codes + j * weight.panel()) {}

  // Writes the next tile to `to`, and fetches one that comes later.
  INLINE_MEMBER void next(uint8_t* to) {
    for (long line = 0; line < INT4_STEP; line += 64) __builtin_prefetch(at_ + FAR_AHEAD + line, 0, 2);
    widen_tile(at_, to);
    at_ += INT4_STEP;
  }

 private:
  static constexpr long FAR_AHEAD = 8 * INT4_STEP;

  const uint8_t* at_ = nullptr;
};

// Writes the panels [j, j + panels) as int8 to `room`.
inline void widen_panels(const Int4Weight& weight, long j, long panels, uint8_t* room) {
  for (long last = j + panels; j < last; j++) {
    Int4Panel panel(weight, j);
    for (long step = 0; step < weight.steps; step++, room += INT_TILE) panel.next(room);
  }
}

// The same as on_vectors, on tiles. At most 32 rows, from a multiple of 32 on. The first of them widen the panels to
// `room`, for all rows.
inline void on_tiles([[maybe_unused]] const Int4Weight& weight, [[maybe_unused]] const QuantizedRows& x,
                       [[maybe_unused]] long row, [[maybe_unused]] long count, [[maybe_unused]] long j,
                       [[maybe_unused]] long panels, [[maybe_unused]] uint8_t* room, [[maybe_unused]] float* out,
                       [[maybe_unused]] long stride) {
#ifdef __AMX_INT8__
  const Int8Weight wide(room, weight.scales + j * LANES, weight.steps);
  for (long c = 0; c < panels; c += 2) {
    const long last = std::min(panels, c + 2);
    const auto widen = [&](long step) {
      if (row > 0 || step >= weight.steps) return;
      for (long p = c; p < last; p++) {
        const uint8_t* const from = weight.codes + (j + p) * weight.panel() + step * INT4_STEP;
        for (long at = 0; at < INT4_STEP; at += 64) __builtin_prefetch(from + at + TILES_AHEAD, 0, 2);
        widen_tile(from, room + p * wide.panel() + step * INT_TILE);
      }
    };
    widen(0);
    int8_tiles(wide, x, row, count, c, last - c, out + c * LANES, stride, [&](long step) { widen(step + 1); });
  }
#endif
}

}  // namespace
