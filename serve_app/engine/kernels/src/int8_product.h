// Products of int8 weights with rows of int8. Sums are integers and therefore exact: every path has the same outputs,
// bit for bit. An output is sum * (scale of the row) * (scale of the output), in this order.
//
// A packed weight: panels [N/16][K/4][16][4] of codes + 128, K rounded up to 64, then N scales, rounded up to 16. 64
// bytes have sixteen outputs at four inputs. Sixteen such lines are one tile of AMX.
#pragma once
#include "quantized_rows.h"
#include "tiles.h"
#include "weight_fetches.h"

namespace {

constexpr int32_t INT8_ZERO = 128;  // what a stored code is above its value
constexpr long INT_TILE = INT_TILE_ROWS * INT_INPUTS;

struct Int8Weight {
  static constexpr bool PER_OUTPUT = true;  // there is one scale for each output

  const uint8_t* codes;
  const float* scales;
  long steps;

  Int8Weight(const void* packed, long n, long k)
      : codes((const uint8_t*)packed), steps(int_steps(k)) {
    scales = (const float*)(codes + (n + LANES - 1) / LANES * panel());
  }
  Int8Weight(const uint8_t* codes, const float* scales, long steps) : codes(codes), scales(scales), steps(steps) {}
  long panel() const { return steps * INT_TILE; }  // bytes
};

// What a row's coarse codes add to its sums of codes at some panels.
struct CoarseLine {
  const Int8Weight& weight;

  static I16 zero(const QuantizedRows& x, long row) { return I16{} - INT8_ZERO * x.coarse_sum(row); }
  const uint8_t* panel(long j) const { return weight.codes + j * weight.panel(); }
  INLINE I16 add(I16 sums, const uint8_t* panel, long line, uint32_t codes) {
    return add_four(sums, load_line(panel + line * 64), U16{} + codes);
  }
};

INLINE CoarseLine coarse_line(const Int8Weight& weight) { return {weight}; }

// sums[i] += the products of a row's coarse codes with the weights of panel panels[i]. Panels take turns at each code, so that
// none waits for its own sum.
template <int NP, class Weight>
void add_coarse(I16 (&sums)[NP], const Weight& weight, const long (&panels)[NP], const QuantizedRows& x, long row) {
  const auto line_of = coarse_line(weight);
  const uint8_t* w[NP];
  I16 products[NP];
  for (int i = 0; i < NP; i++) w[i] = line_of.panel(panels[i]), products[i] = line_of.zero(x, row);
  x.each_coarse(row, [&](long line, uint32_t codes) {
#pragma GCC unroll 8
    for (int i = 0; i < NP; i++) products[i] = line_of.add(products[i], w[i], line, codes);
  });
  for (int i = 0; i < NP; i++) sums[i] += QuantizedRows::COARSE * products[i];
}

// The outputs of a row at NP panels, of its sums of codes, which without coarse codes are those of its bytes.
template <int NP, class Weight>
INLINE void scale_sums(I16 (&sums)[NP], const Weight& weight, const long (&panels)[NP], const QuantizedRows& x, long row,
                       F16 (&out)[NP]) {
  if (x.coarse_count(row)) add_coarse(sums, weight, panels, x, row);
  const F16 scale = splat(x.scale(row));
  for (int i = 0; i < NP; i++) out[i] = to_floats(sums[i]) * scale * load(weight.scales + panels[i] * LANES);
}

// The same of sums of stored bytes, at NP panels from `j` on, to `out`.
template <int NP>
INLINE void store_scaled(I16 (&sums)[NP], const Int8Weight& weight, long j, const QuantizedRows& x, long row, float* out) {
  long panels[NP];
  F16 outputs[NP];
  for (int i = 0; i < NP; i++) sums[i] -= INT8_ZERO * x.sum(row), panels[i] = j + i;
  scale_sums(sums, weight, panels, x, row, outputs);
  for (int i = 0; i < NP; i++) store(out + i * LANES, outputs[i]);
}

// What one of several blocks of rows fetches: its share of the lines of each tile of the panels that come next, which lie
// `offset` bytes further on. So memory is read all the time, and not only while the first block meets its panels.
struct Share {
  long offset, first, last;

  // Of block `block` of `blocks`, in tiles of `lines` lines. One block alone reads all the time, and has no share.
  Share(long offset, long lines, long block, long blocks)
      : offset(offset), first(lines * block / blocks), last(offset && blocks > 1 ? lines * (block + 1) / blocks : 0) {}

  INLINE_MEMBER bool has(long line) const { return first <= line && line < last; }
  INLINE_MEMBER void fetch(const uint8_t* line) const { __builtin_prefetch(line + offset, 0, 2); }
};

// MR rows from `row` on at NR panels from `j` on: out [MR, NR * 16], rows `stride` apart.
template <int MR, int NR>
void int8_vectors(const Int8Weight& weight, const QuantizedRows& x, long row, long j, Share share, float* out,
                  long stride) {
  const uint8_t* w = weight.codes + j * weight.panel();
  const int8_t* codes = x.row(row);
  const long panel = weight.panel();
  I16 sums[MR][NR] = {};
  for (long step = 0; step < x.steps; step++, codes += x.STRIDE)
    for (long line = 0; line < INT_TILE_ROWS; line++, w += 64) {
      if (share.has(line))
#pragma GCC unroll 4
        for (int c = 0; c < NR; c++) share.fetch(w + c * panel);
      U16 b[NR];
#pragma GCC unroll 4
      for (int c = 0; c < NR; c++) {
        b[c] = as_codes(load_line(w + c * panel));
        fetch_weights(w + c * panel + QUANTIZED_AHEAD);
      }
#pragma GCC unroll 16
      for (int r = 0; r < MR; r++) {
        const U16 a = splat_four(codes + r * INT_INPUTS + line * 4);
#pragma GCC unroll 4
        for (int c = 0; c < NR; c++) sums[r][c] = add_codes(sums[r][c], b[c], a);
      }
    }
  for (int r = 0; r < MR; r++) {
    for (int c = 0; c < NR; c++) sums[r][c] += CODES_ZERO * x.sum(row + r);
    store_scaled(sums[r], weight, j, x, row + r, out + r * stride);
  }
}

#ifdef __AMX_INT8__

// The same for ROWS tiles of rows, 1 or 2, and PANELS panels, 1 or 2. Calls between(step) in every step of 64 inputs.
template <int ROWS, int PANELS, class Between>
void int8_tiles(const Int8Weight& weight, const QuantizedRows& x, long row, long count, long j, float* out, long stride,
                Between&& between) {
  alignas(64) int32_t sums[2 * INT_TILE_ROWS][2 * LANES];
  const uint8_t* const w = weight.codes + j * weight.panel();
  const uint8_t* const v = w + weight.panel();
  const int8_t *const codes = x.row(row), *const low = ROWS > 1 ? x.row(row + INT_TILE_ROWS) : codes;
  TileSums<ROWS, PANELS>::zero();
  asm volatile("" ::: "memory");  // GCC does not know that its tile loads read memory
  for (long step = 0; step < x.steps; step++) {
    const long at = step * INT_TILE, of_rows = step * x.STRIDE;
    Int8Step::add<ROWS, PANELS>(codes + of_rows, low + of_rows, w + at, v + at);
    between(step);
  }
  TileSums<ROWS, PANELS>::store(sums[0], sums[INT_TILE_ROWS], sizeof sums[0]);
  asm volatile("" ::: "memory");
  for (long r = 0; r < count; r++) {
    I16 of_row[PANELS];
    for (int c = 0; c < PANELS; c++) of_row[c] = load_bytes<I16>(sums[r] + c * LANES);
    store_scaled(of_row, weight, j, x, row + r, out + r * stride);
  }
}

// The same for up to 32 rows and two panels.
template <class Between>
void int8_tiles(const Int8Weight& weight, const QuantizedRows& x, long row, long count, long j, long panels, float* out,
                long stride, Between&& between) {
  if (count > INT_TILE_ROWS)
    panels > 1 ? int8_tiles<2, 2>(weight, x, row, count, j, out, stride, between)
               : int8_tiles<2, 1>(weight, x, row, count, j, out, stride, between);
  else
    panels > 1 ? int8_tiles<1, 2>(weight, x, row, count, j, out, stride, between)
               : int8_tiles<1, 1>(weight, x, row, count, j, out, stride, between);
}

#endif

template <int MR>
void int8_vectors(const Int8Weight& weight, const QuantizedRows& x, long row, long j, long panels, Share share,
                  float* out, long stride) {
  constexpr int MOST = REGISTERS < 32 ? (MR == 1 ? 2 : 1) : 4;  // whose sums and weights stay in registers
  for (; panels > MOST; j += MOST, panels -= MOST, out += MOST * LANES)
    int8_vectors<MR, MOST>(weight, x, row, j, share, out, stride);
  switch (panels) {
    case 1: return int8_vectors<MR, 1>(weight, x, row, j, share, out, stride);
    case 2: return int8_vectors<MR, 2>(weight, x, row, j, share, out, stride);
    case 3: return int8_vectors<MR, 3>(weight, x, row, j, share, out, stride);
    case 4: return int8_vectors<MR, 4>(weight, x, row, j, share, out, stride);
  }
}

// Blocks that `count` rows are cut into: of four rows, and of two and one for what is left.
INLINE long vector_blocks(long count) { return count / 4 + count % 4 / 2 + count % 2; }

// Rows that take one panel after another, at most: their sums stay in registers.
constexpr long SINGLE_ROWS = REGISTERS < 32 ? 0 : 16;

// `count` rows, from MR to SINGLE_ROWS, at one panel after another. Measured on Zen 5: a core reads one panel faster from
// memory than four side by side, and no line is read again by other rows.
template <int MR>
void int8_singles(const Int8Weight& weight, const QuantizedRows& x, long row, long count, long j, long panels, float* out,
                  long stride) {
  if (count == MR)
    for (long c = 0; c < panels; c++)
      int8_vectors<MR, 1>(weight, x, row, j + c, Share(0, 0, 0, 1), out + c * LANES, stride);
  else if constexpr (MR < SINGLE_ROWS)
    int8_singles<MR + 1>(weight, x, row, count, j, panels, out, stride);
}

// `count` rows from `row` on at up to four panels, on vector registers. Panels that come next are `offset` bytes further on.
inline void on_vectors(const Int8Weight& weight, const QuantizedRows& x, long row, long count, long j, long panels,
                       long offset, float* out, long stride) {
  if (count <= SINGLE_ROWS) return int8_singles<1>(weight, x, row, count, j, panels, out, stride);
  for (long r = 0, next, block = 0; r < count; r = next, block++) {
    float* const at = out + r * stride;
    const Share share(offset, INT_TILE_ROWS, block, vector_blocks(count));
    if (const long left = count - r; left >= 4)
      int8_vectors<4>(weight, x, row + r, j, panels, share, at, stride), next = r + 4;
    else if (left >= 2)
      int8_vectors<2>(weight, x, row + r, j, panels, share, at, stride), next = r + 2;
    else
      int8_vectors<1>(weight, x, row + r, j, panels, share, at, stride), next = r + 1;
  }
}

// The same on tiles. At most 32 rows, from a multiple of 32 on.
inline void on_tiles([[maybe_unused]] const Int8Weight& weight, [[maybe_unused]] const QuantizedRows& x,
                       [[maybe_unused]] long row, [[maybe_unused]] long count, [[maybe_unused]] long j,
                       [[maybe_unused]] long panels, uint8_t*, [[maybe_unused]] float* out,
                       [[maybe_unused]] long stride) {
#ifdef __AMX_INT8__
  for (long c = 0; c < panels; c += 2, j += 2, out += 2 * LANES) {
    const uint8_t* const w = weight.codes + j * weight.panel();
    const long some = std::min(2L, panels - c);
    int8_tiles(weight, x, row, count, j, some, out, stride, [&](long step) {
      if (row > 0) return;
      for (long p = 0; p < some; p++) prefetch_tile((const bf16*)(w + p * weight.panel() + step * INT_TILE));
    });
  }
#endif
}

}  // namespace
