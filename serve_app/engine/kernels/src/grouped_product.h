// Products of the codes of quantised checkpoints with rows of int8. A weight is (code - zero) * scale + minimum, where codes
// have four or eight bits and the inputs of a group share a scale, a zero and perhaps a minimum. Sums within a group are
// integers and therefore exact. A row's output adds up (sum of the group) * (scale of the group), and then (sum of the row's
// codes) * (minimum of the group), in the order of the groups, in float32 and without fusing, and is multiplied by the scale
// of the row. So every path has the same outputs, bit for bit.
//
// A packed weight: a header of 64 bytes; panels [N/16][K/32] of units of 32 inputs, K rounded up to 64; for each panel and
// group sixteen scales, then for each panel and group sixteen zeros in bytes; then, each if the header says that there are
// any, sixteen minimums for each panel and group, and the order of the inputs (int32). A unit of eight bits has eight lines of sixteen outputs at four inputs. A unit of four bits
// has four: a byte of line l has a code of line l of eight bits in its low half, and of line l + 4 in its high half.
//
// A group has sixteen inputs or a multiple of 32. The last may be partial. Codes of four bits may be places in a table of
// sixteen bytes, which are then what zeros are subtracted from.
#pragma once
#include "int8_product.h"

namespace {

constexpr long UNIT_INPUTS = 32, HALF_UNIT = UNIT_INPUTS / 2, UNIT_LINES = UNIT_INPUTS / 4;
constexpr long TILED_ROWS = 8;  // with more rows, tiles are faster than vectors, although sums leave them after each group
constexpr uint32_t LOW_CODES = 0x0f0f0f0fu;

struct GroupedHeader {
  int64_t group, ordered, table;
  uint8_t values[16], minimums, unused[23];
};
static_assert(sizeof(GroupedHeader) == 64);

template <int BITS>
struct GroupedWeight {
  static constexpr bool PER_OUTPUT = false;
  static constexpr long LINES = UNIT_LINES * BITS / 8, UNIT = LINES * 64;  // of a unit; bytes

  const GroupedHeader& header;
  const uint8_t* codes;
  const float* scales;
  const uint8_t* zeros;
  const float* minimums;  // or null
  const int32_t* order;   // of the inputs, or null
  long steps, units, group, groups;

  GroupedWeight(const void* packed, long n, long k) : header(*(const GroupedHeader*)packed), steps(int_steps(k)) {
    const long panels = (n + LANES - 1) / LANES;
    units = steps * (INT_INPUTS / UNIT_INPUTS), group = header.group;
    groups = (steps * INT_INPUTS + group - 1) / group;
    codes = (const uint8_t*)packed + sizeof(GroupedHeader);
    scales = (const float*)(codes + panels * panel());
    zeros = (const uint8_t*)(scales + panels * groups * LANES);
    const float* const after = (const float*)(zeros + panels * groups * LANES);
    minimums = header.minimums ? after : nullptr;
    order = header.ordered ? (const int32_t*)(after + (minimums ? panels * groups * LANES : 0)) : nullptr;
  }
  long panel() const { return units * UNIT; }  // bytes
  const uint8_t* at(long j) const { return codes + j * panel(); }
  const float* scales_at(long j) const { return scales + j * groups * LANES; }
  const uint8_t* zeros_at(long j) const { return zeros + j * groups * LANES; }
  F16 minimums_at(long j, long g) const { return load(minimums + (j * groups + g) * LANES); }
};

// v, so that GCC cannot fuse the multiplication that made it with an addition.
INLINE F16 unfused(F16 v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__AVX2__)
  asm("" : "+x"(v.low), "+x"(v.high));
#else
  asm("" : "+m"(v));
#endif
  return v;
}

// A sum of codes of a row, negative, as two halves that `zero_pairs` multiply: sum = low + 128 * high.
INLINE uint32_t sum_pair(int32_t sum) { return ((uint32_t)-sum & 127) | (uint32_t)(-sum >> 7) << 16; }

// Zeros z as pairs z and 128 * z.
INLINE U16 zero_pairs(const uint8_t* zeros) {
#ifdef __AVX512F__
  const U16 wide = (U16)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)zeros));
#else
  const U16 wide = convert<U16>(load_bytes<Lanes<uint8_t, 16>>(zeros));
#endif
  return wide | wide << 23;
}

// Each byte of q, less than 16, as that of the table.
INLINE U16 look_up(const uint8_t* table, U16 q) {
#ifdef __AVX512BW__
  return (U16)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), (__m512i)q);
#elif defined(__AVX2__)
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  const auto [low, high] = halves<__m256i>(q);
  return joined<U16>(_mm256_shuffle_epi8(both, low), _mm256_shuffle_epi8(both, high));
#else
  uint8_t bytes[64];
  memcpy(bytes, &q, sizeof bytes);
  for (uint8_t& each : bytes) each = table[each];
  memcpy(&q, bytes, sizeof bytes);
  return q;
#endif
}

// The sums of a row's group, at sixteen outputs: what they add to its output.
INLINE F16 scaled(I16 sums, U16 zeros, uint32_t sum_of_row, F16 scale) {
  return unfused(to_floats(add_two(sums, zeros, U16{} + sum_of_row)) * scale);
}

// What the minimums of a group take from a row's output at sixteen outputs: the sum of the row's codes is negative.
INLINE F16 lowered(uint32_t sum_of_row, F16 minimums) {
  return unfused(to_floats(add_two(I16{}, U16{} + (1u | 128u << 16), U16{} + sum_of_row)) * minimums);
}

// The codes of line l of a unit, as unsigned bytes.
template <bool TABLE>
INLINE U16 line_of(const GroupedWeight<8>&, const uint8_t* unit, long line) {
  return load_line(unit + line * 64);
}
template <bool TABLE>
INLINE U16 line_of(const GroupedWeight<4>& weight, const uint8_t* unit, long line) {
  constexpr long HALF = UNIT_LINES / 2;
  const U16 q = load_line(unit + line % HALF * 64) >> (line < HALF ? 0 : 4) & LOW_CODES;
  return TABLE ? look_up(weight.header.values, q) : q;
}

// What a row's coarse codes add to its output at a panel, in 256ths.
template <bool TABLE, int BITS>
F16 coarse_output(const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long j) {
  const uint8_t* const w = weight.at(j);
  F16 output = {};
  I16 sums = {};
  long group = -1;
  int32_t whole = 0;  // the sum of the row's coarse codes of the group
  const auto end = [&](long next) {
    if (group >= 0) output += unfused(to_floats(sums) * load(weight.scales_at(j) + group * LANES));
    if (group >= 0 && weight.minimums) output -= lowered(sum_pair(whole), weight.minimums_at(j, group));
    sums = I16{}, group = next, whole = 0;
  };
  x.each_coarse(row, [&](long line, uint32_t codes) {
    if (const long next = line * 4 / weight.group; next != group) end(next);
    const int32_t sum = (int8_t)codes + (int8_t)(codes >> 8) + (int8_t)(codes >> 16) + (int8_t)(codes >> 24);
    const U16 q = line_of<TABLE>(weight, w + line / UNIT_LINES * weight.UNIT, line % UNIT_LINES);
    whole += sum;
    sums = add_two(add_four(sums, q, U16{} + codes), zero_pairs(weight.zeros_at(j) + group * LANES), U16{} + sum_pair(sum));
  });
  end(-1);
  return output;
}

// The output of a row at a panel, of what its groups add up to.
template <bool TABLE, int BITS>
INLINE F16 finished(F16 output, const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long j) {
  if (x.coarse_count(row))
    output += unfused(coarse_output<TABLE>(weight, x, row, j) * (float)QuantizedRows::COARSE);
  return output * splat(x.scale(row));
}

// sums[half of the unit][row] += the products of a unit: of both halves if they are of two groups, else all at [0].
template <bool TABLE, bool HALVES, int MR>
INLINE void add_unit(const GroupedWeight<8>& weight, const uint8_t* w, const int8_t* codes, I16 (&sums)[2][MR]) {
#pragma GCC unroll 8
  for (long line = 0; line < UNIT_LINES; line++) {
    const U16 b = line_of<TABLE>(weight, w, line);
    fetch_weights(w + line * 64 + QUANTIZED_AHEAD);
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      I16& to = sums[HALVES && line >= UNIT_LINES / 2][r];
      to = add_four(to, b, splat_four(codes + r * INT_INPUTS + line * 4));
    }
  }
}

// Sums of four bits times codes. Sixteen bits hold those of eight lines: 8 * 2 * 15 * 128.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
INLINE U16 add_small(U16 sums, U16 q, U16 x) {
  return on_halves(
      [](__m256i to, __m256i q, __m256i rows) { return _mm256_add_epi16(to, _mm256_maddubs_epi16(q, rows)); }, sums, q, x);
}
INLINE I16 add_small_sums(I16 sums, U16 small) { return add_two(sums, small, U16{} + 0x00010001u); }
using SmallSums = U16;
#else
INLINE I16 add_small(I16 sums, U16 q, U16 x) { return add_four(sums, q, x); }
INLINE I16 add_small_sums(I16 sums, I16 small) { return sums + small; }
using SmallSums = I16;
#endif

template <bool TABLE, bool HALVES, int MR>
INLINE void add_unit(const GroupedWeight<4>& weight, const uint8_t* w, const int8_t* codes, I16 (&sums)[2][MR]) {
  SmallSums small[2][MR] = {};
#pragma GCC unroll 4
  for (long line = 0; line < UNIT_LINES / 2; line++) {
    const U16 both = load_line(w + line * 64);
    fetch_weights(w + line * 64 + QUANTIZED_AHEAD);
    U16 low = both & LOW_CODES, high = both >> 4 & LOW_CODES;
    if (TABLE) low = look_up(weight.header.values, low), high = look_up(weight.header.values, high);
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      const int8_t* const at = codes + r * INT_INPUTS + line * 4;
      if (TABLE) {
        sums[0][r] = add_four(sums[0][r], low, splat_four(at));
        sums[HALVES][r] = add_four(sums[HALVES][r], high, splat_four(at + HALF_UNIT));
      } else {
        small[0][r] = add_small(small[0][r], low, splat_four(at));
        small[HALVES][r] = add_small(small[HALVES][r], high, splat_four(at + HALF_UNIT));
      }
    }
  }
  for (int r = 0; !TABLE && r < MR; r++)
    for (int half = 0; half <= HALVES; half++) sums[half][r] = add_small_sums(sums[half][r], small[half][r]);
}

// MR rows from `row` on at panel `j`: out [MR, 16], rows `stride` apart. HALVES: groups are half a unit.
template <bool TABLE, bool HALVES, int MR, int BITS>
void grouped_vectors(const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long j, Share share, float* out,
                     long stride) {
  const uint8_t *w = weight.at(j), *const zeros = weight.zeros_at(j);
  const float* const scales = weight.scales_at(j);
  const int8_t* const codes = x.row(row);
  const uint32_t* const sums_of_rows = x.group_sums(row);
  const long units = HALVES ? 1 : weight.group / UNIT_INPUTS;
  F16 outputs[MR] = {};
  for (long unit = 0, group = 0; unit < weight.units; group += 1 + HALVES) {
    I16 sums[2][MR] = {};
    for (const long last = std::min(weight.units, unit + units); unit < last; unit++, w += weight.UNIT) {
      for (long line = share.first; line < share.last; line++) share.fetch(w + line * 64);
      add_unit<TABLE, HALVES>(weight, w, codes + unit / 2 * x.STRIDE + unit % 2 * UNIT_INPUTS, sums);
    }
#pragma GCC unroll 2
    for (int half = 0; half <= HALVES; half++) {
      const U16 zero = zero_pairs(zeros + (group + half) * LANES);
      const F16 scale = load(scales + (group + half) * LANES);
      const uint32_t* const of_group = sums_of_rows + group + half;
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) outputs[r] += scaled(sums[half][r], zero, of_group[r * x.row_groups()], scale);
      if (!weight.minimums) continue;
      const F16 minimums = weight.minimums_at(j, group + half);
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) outputs[r] -= lowered(of_group[r * x.row_groups()], minimums);
    }
  }
  for (int r = 0; r < MR; r++) store(out + r * stride, finished<TABLE>(outputs[r], weight, x, row + r, j));
}

constexpr long GROUPED_ROWS = REGISTERS < 32 ? 2 : 8;  // rows of a block, whose sums stay in registers

// `count` rows, from MR to GROUPED_ROWS, at one panel after another.
template <bool TABLE, bool HALVES, int MR, int BITS>
void grouped_panels(const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long count, long j, long panels,
                    Share share, float* out, long stride) {
  if (count == MR)
    for (long c = 0; c < panels; c++)
      grouped_vectors<TABLE, HALVES, MR>(weight, x, row, j + c, share, out + c * LANES, stride);
  else if constexpr (MR < GROUPED_ROWS)
    grouped_panels<TABLE, HALVES, MR + 1>(weight, x, row, count, j, panels, share, out, stride);
}

// Calls f with two constants: whether codes are places in a table, and whether groups are half a unit.
template <int BITS, class F>
INLINE void with_form(const GroupedWeight<BITS>& weight, F&& f) {
  using Yes = std::true_type;
  using No = std::false_type;
  const bool halves = weight.group < UNIT_INPUTS;
  if (BITS == 4 && weight.header.table)
    halves ? f(std::integral_constant<bool, BITS == 4>{}, Yes{}) : f(std::integral_constant<bool, BITS == 4>{}, No{});
  else
    halves ? f(No{}, Yes{}) : f(No{}, No{});
}

// The same as on_vectors of int8.
template <int BITS>
void on_vectors(const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long count, long j, long panels,
                long offset, float* out, long stride) {
  with_form(weight, [&](auto table, auto halves) {
    const long blocks = (count + GROUPED_ROWS - 1) / GROUPED_ROWS;
    for (long block = 0; block < blocks; block++) {
      const long r = block * GROUPED_ROWS;
      const Share share(offset, weight.LINES, block, blocks);
      grouped_panels<decltype(table)::value, decltype(halves)::value, 1>(
          weight, x, row + r, std::min(GROUPED_ROWS, count - r), j, panels, share, out + r * stride, stride);
    }
  });
}

// The bytes of a step of 64 inputs as a tile.
template <bool TABLE>
INLINE void widen_step(const GroupedWeight<4>& weight, const uint8_t* from, uint8_t* to) {
  for (long unit = 0; unit < INT_INPUTS / UNIT_INPUTS; unit++, from += weight.UNIT)
#pragma GCC unroll 8
    for (long line = 0; line < UNIT_LINES; line++, to += 64) {
      const U16 q = line_of<TABLE>(weight, from, line);
      memcpy(to, &q, sizeof q);
    }
}
template <bool TABLE>
INLINE void widen_step(const GroupedWeight<8>&, const uint8_t*, uint8_t*) {}

#ifdef __AMX_INT8__

// ROWS tiles of rows and PANELS panels, each 1 or 2, of which `count` rows are wanted: out [count, PANELS * 16]. `wide`: the
// tiles of the panels. Calls before(step) in every step.
template <bool TABLE, int ROWS, int PANELS, int BITS, class Before>
void grouped_tiles(const GroupedWeight<BITS>& weight, const QuantizedRows& x, long row, long count, long j,
                   const uint8_t* wide, float* out, long stride, Before&& before) {
  alignas(64) int32_t sums[2 * INT_TILE_ROWS][2 * LANES];
  const long panel = weight.steps * INT_TILE, steps = weight.group / INT_INPUTS;
  const int8_t *const codes = x.row(row), *const low = ROWS > 1 ? x.row(row + INT_TILE_ROWS) : codes;
  for (long r = 0; r < count; r++)
    for (int c = 0; c < PANELS; c++) store(out + r * stride + c * LANES, F16{});
  for (long step = 0, group = 0; step < weight.steps; group++) {
    TileSums<ROWS, PANELS>::zero();
    for (const long last = std::min(weight.steps, step + steps); step < last; step++) {
      before(step);
      asm volatile("" ::: "memory");  // GCC does not know that its tile loads read memory
      const uint8_t* const w = wide + step * INT_TILE;
      Int8Step::add<ROWS, PANELS>(codes + step * x.STRIDE, low + step * x.STRIDE, w, w + panel);
    }
    TileSums<ROWS, PANELS>::store(sums[0], sums[INT_TILE_ROWS], sizeof sums[0]);
    asm volatile("" ::: "memory");
    for (int c = 0; c < PANELS; c++) {
      const U16 zero = zero_pairs(weight.zeros_at(j + c) + group * LANES);
      const F16 scale = load(weight.scales_at(j + c) + group * LANES);
      for (long r = 0; r < count; r++) {
        float* const at = out + r * stride + c * LANES;
        const I16 of_row = load_bytes<I16>(sums[r] + c * LANES);
        store(at, load(at) + scaled(of_row, zero, x.group_sums(row + r)[group], scale));
      }
      for (long r = 0; weight.minimums && r < count; r++) {
        float* const at = out + r * stride + c * LANES;
        store(at, load(at) - lowered(x.group_sums(row + r)[group], weight.minimums_at(j + c, group)));
      }
    }
  }
  for (long r = 0; r < count; r++)
    for (int c = 0; c < PANELS; c++) {
      float* const at = out + r * stride + c * LANES;
      store(at, finished<TABLE>(load(at), weight, x, row + r, j + c));
    }
}

#endif

// The same as on_vectors, on tiles, of groups of whole steps. At most 32 rows, from a multiple of 32 on. The first of them
// widen panels of four bits to `room`, for all rows.
template <int BITS>
void on_tiles([[maybe_unused]] const GroupedWeight<BITS>& weight, [[maybe_unused]] const QuantizedRows& x,
              [[maybe_unused]] long row, [[maybe_unused]] long count, [[maybe_unused]] long j,
              [[maybe_unused]] long panels, [[maybe_unused]] uint8_t* room, [[maybe_unused]] float* out,
              [[maybe_unused]] long stride) {
#ifdef __AMX_INT8__
  with_form(weight, [&](auto table, auto) {
    constexpr bool TABLE = decltype(table)::value;
    const long panel = weight.steps * INT_TILE;
    for (long c = 0; c < panels; c += 2) {
      const long some = std::min(2L, panels - c);
      uint8_t* const wide = BITS == 4 ? room + c * panel : (uint8_t*)weight.at(j + c);
      const auto widen = [&](long step) {
        if (row > 0) return;
        for (long p = 0; p < some; p++) {
          const uint8_t* const from = weight.at(j + c + p) + step * 2 * weight.UNIT;
          for (long at = 0; at < 2 * weight.UNIT; at += 64) __builtin_prefetch(from + at + TILE_AHEAD, 0, 2);
          widen_step<TABLE>(weight, from, wide + p * panel + step * INT_TILE);
        }
      };
      float* const to = out + c * LANES;
      if (count > INT_TILE_ROWS)
        some > 1 ? grouped_tiles<TABLE, 2, 2>(weight, x, row, count, j + c, wide, to, stride, widen)
                 : grouped_tiles<TABLE, 2, 1>(weight, x, row, count, j + c, wide, to, stride, widen);
      else
        some > 1 ? grouped_tiles<TABLE, 1, 2>(weight, x, row, count, j + c, wide, to, stride, widen)
                 : grouped_tiles<TABLE, 1, 1>(weight, x, row, count, j + c, wide, to, stride, widen);
    }
  });
#endif
}

template <int BITS>
long widened_bytes(const GroupedWeight<BITS>& weight, long panels) {
  return BITS == 4 ? panels * weight.steps * INT_TILE : 0;
}

template <int BITS>
bool on_few_tiles(const GroupedWeight<BITS>& weight, long m) {
  return m > TILED_ROWS && weight.group % INT_INPUTS == 0;
}

// Quantises x [k] to row `r`, in the order of the weight's inputs. Instead of the sums of every sixteen codes, the row then
// has those of its groups, as pairs.
template <int BITS>
void put_codes(const GroupedWeight<BITS>& weight, const float* x, long k, long r, const QuantizedRows& to) {
  if (weight.order) {
    static thread_local Scratch scratch;
    float* const ordered = scratch.take(k);
    for (long i = 0; i < k; i++) ordered[i] = x[weight.order[i]];
    x = ordered;
  }
  quantize_row(x, k, r, to);
  uint32_t* const sums = to.group_sums(r);
  const long each = weight.group / INT4_INPUTS;
  for (long group = 0; group < weight.groups; group++) {
    int32_t sum = 0;
    for (long i = group * each; i < std::min((group + 1) * each, to.row_groups()); i++) sum -= (int32_t)sums[i] >> 16;
    sums[group] = sum_pair(sum);
  }
}

}  // namespace
