// The tile registers of AMX in plain C++. Compiled before the kernels, by -include, it lets every processor run and check
// what they compute on tiles. It says nothing of speed.
#pragma once
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

// What asks Linux for tile registers is a call that succeeds everywhere.
#undef SYS_arch_prctl
#define SYS_arch_prctl SYS_sched_yield

namespace emulated {

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};

inline thread_local Tile tiles[8];
inline thread_local uint8_t rows[8];  // 0: not configured

[[noreturn]] inline void refuse() { __builtin_trap(); }

// The configuration: a palette, then at byte 16 the bytes of a row of each tile, and at byte 48 their rows.
inline void configure(const void* config) {
  const uint8_t* const at = (const uint8_t*)config;
  for (int i = 0; i < 8; i++) {
    uint16_t row_bytes;
    memcpy(&row_bytes, at + 16 + 2 * i, sizeof row_bytes);
    rows[i] = at[48 + i];
    if (at[0] != 1 || row_bytes != 64 || rows[i] < 1 || rows[i] > 16) refuse();
  }
  memset(tiles, 0, sizeof tiles);
}

inline void release() { memset(rows, 0, sizeof rows); }

inline Tile& configured(int i) {
  if (!rows[i]) refuse();
  return tiles[i];
}

inline void zero(int i) { memset(&configured(i), 0, sizeof(Tile)); }

inline void load(int i, const void* from, long stride) {
  Tile& tile = configured(i);
  zero(i);
  for (int r = 0; r < rows[i]; r++) memcpy(tile.bytes[r], (const uint8_t*)from + r * stride, 64);
}

inline void store(int i, void* to, long stride) {
  Tile& tile = configured(i);
  for (int r = 0; r < rows[i]; r++) memcpy((uint8_t*)to + r * stride, tile.bytes[r], 64);
}

// Calls product(sum, x, w) for each sum of tile `sums`, with a row x of tile `a` and a column of `b`, whose four bytes are
// 64 bytes apart.
template <class Sum, class Product>
inline void add(int sums, int a, int b, Product&& product) {
  Tile &to = configured(sums), &x = configured(a), &w = configured(b);
  if (rows[sums] != rows[a] || rows[b] != 16) refuse();
  for (int r = 0; r < rows[sums]; r++)
    for (int column = 0; column < 64; column += 4) {
      Sum sum;
      memcpy(&sum, to.bytes[r] + column, sizeof sum);
      product(sum, x.bytes[r], w.bytes[0] + column);
      memcpy(to.bytes[r] + column, &sum, sizeof sum);
    }
}

inline float widened(const uint8_t* at) {
  const uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// As Intel describes TDPBF16PS: products of even and of odd inputs are added up apart. A product is exact.
inline void add_bf16(int sums, int a, int b) {
  add<float>(sums, a, b, [](float& sum, const uint8_t* x, const uint8_t* w) {
    float even = 0, odd = 0;
    for (int i = 0; i < 64; i += 4, x += 4, w += 64) even += widened(x) * widened(w), odd += widened(x + 2) * widened(w + 2);
    sum += even + odd;
  });
}

inline void add_int8(int sums, int a, int b) {
  add<int32_t>(sums, a, b, [](int32_t& sum, const uint8_t* x, const uint8_t* w) {
    for (int four = 0; four < 64; four += 4, x += 4, w += 64)
      for (int i = 0; i < 4; i++) sum += (int8_t)x[i] * w[i];
  });
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig(config) emulated::configure(config)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) emulated::add_bf16(sums, a, b)
#define _tile_dpbsud(sums, a, b) emulated::add_int8(sums, a, b)
