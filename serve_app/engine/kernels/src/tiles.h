// Products on the tile registers of AMX. One step multiplies 16 rows by 16 outputs at 32 inputs: factors are bfloat16,
// sums are float32. Every output adds up its steps in the order of the inputs, whatever block of rows and outputs the
// product computes at once.
#pragma once
#include "panels.h"
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

constexpr long TILE_ROWS = 16, TILE_SIZE = TILE_ROWS * BF16_INPUTS;
constexpr long TILE_BYTES = TILE_ROWS * 64;  // of every type

// The place of input i of row r in rows stored as tiles [rows/16][inputs/32][16][32]; `inputs` is a multiple of 32.
INLINE long tile_offset(long r, long i, long inputs) {
  return r / TILE_ROWS * TILE_ROWS * inputs + i / BF16_INPUTS * TILE_SIZE + r % TILE_ROWS * BF16_INPUTS + i % BF16_INPUTS;
}

// Two panels, or a tile of each.
struct PanelPair {
  const char *w, *v;
};

// The factors of a block: two tiles of rows and two panels, each with a tile for each step.
struct BlockFactors {
  const char *high, *low, *w, *v;
  long steps;
};

#ifdef __AMX_BF16__

// Whether this process may use tile registers. Linux grants them to processes that ask; the first call asks.
inline bool have_tiles() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return granted;
}

// The operand of the instruction that configures the tile registers.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // Registers 0 to 3 hold sums, 4 and 5 rows, 6 and 7 panels. Registers 0, 1 and 4 have `first` rows, the others 16.
  constexpr explicit TileConfig(int first = TILE_ROWS) {
    for (int i = 0; i < 8; i++) {
      row_bytes[i] = 64;
      rows[i] = i == 0 || i == 1 || i == 4 ? first : TILE_ROWS;
    }
  }
};

// The configuration for each number of first rows, 1 to 16.
struct TileConfigs {
  TileConfig of[TILE_ROWS + 1];
  constexpr TileConfigs() : of() {
    for (int i = 1; i <= TILE_ROWS; i++) of[i] = TileConfig(i);
  }
};

// Tile registers are configured while a TileScope lives. `rows`: the rows of the whole product; with fewer than 16, the
// first tile of a block has only as many.
class TileScope {
 public:
  explicit TileScope(long rows) {
    static constexpr TileConfigs configs;
    _tile_loadconfig(&configs.of[std::min(rows, TILE_ROWS)]);
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() { _tile_release(); }
};

constexpr long TILE_AHEAD = 4096;  // bytes: how far ahead a panel that comes from memory is fetched

// Fetches the tile that lies TILE_AHEAD after `w` into the second-level cache.
INLINE void prefetch_tile(const bf16* w) {
  for (long line = 0; line < TILE_ROWS; line++)
    __builtin_prefetch((const char*)w + TILE_AHEAD + line * 64, 0, 2);
}

// Two panels that a product takes from memory, a tile of each at a time. `v` may be null. COLD: they are fetched ahead.
template <bool COLD>
class FetchedTiles {
 public:
  FetchedTiles(const bf16* w, const bf16* v) : w_(w), v_(v) {}

  bool two() const { return v_; }
  template <int PANELS>
  INLINE_MEMBER PanelPair next() {
    const PanelPair here{(const char*)w_, (const char*)v_};
    if (COLD) prefetch_tile(w_);
    if (COLD && PANELS > 1) prefetch_tile(v_);
    w_ += TILE_SIZE;
    if (PANELS > 1) v_ += TILE_SIZE;
    return here;
  }

 private:
  const bf16 *w_, *v_;
};

// The sums of ROWS tiles of rows and PANELS panels, each 1 or 2, in the registers 0 to 3. In memory their rows, of four bytes
// a number, are `bytes` apart, and those of the second tile begin at `low`.
template <int ROWS, int PANELS>
struct TileSums {
  INLINE void zero() {
    _tile_zero(0);
    if (PANELS > 1) _tile_zero(1);
    if (ROWS > 1) _tile_zero(2);
    if (ROWS > 1 && PANELS > 1) _tile_zero(3);
  }
  INLINE void load(const void* y, const void* low, long bytes) {
    _tile_loadd(0, y, bytes);
    if (PANELS > 1) _tile_loadd(1, (const char*)y + 64, bytes);
    if (ROWS > 1) _tile_loadd(2, low, bytes);
    if (ROWS > 1 && PANELS > 1) _tile_loadd(3, (const char*)low + 64, bytes);
  }
  INLINE void store(void* y, void* low, long bytes) {
    _tile_stored(0, y, bytes);
    if (PANELS > 1) _tile_stored(1, (char*)y + 64, bytes);
    if (ROWS > 1) _tile_stored(2, low, bytes);
    if (ROWS > 1 && PANELS > 1) _tile_stored(3, (char*)low + 64, bytes);
  }
};

// A step of a block: adds the products of 32 inputs of bfloat16, in rows `bytes` apart, to TileSums of float32.
struct Bf16Step {
  template <int ROWS, int PANELS>
  INLINE void add(const void* high, const void* low, const void* w, const void* v, long bytes = 64) {
    _tile_loadd(4, high, bytes);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (PANELS > 1) {
      _tile_loadd(7, v, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (ROWS > 1) {
      _tile_loadd(5, low, bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (PANELS > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
};

#ifdef __AMX_INT8__

// The same for 64 inputs: rows of int8, and panels of unsigned bytes. Its sums are int32.
struct Int8Step {
  template <int ROWS, int PANELS>
  INLINE void add(const void* high, const void* low, const void* w, const void* v) {
    _tile_loadd(4, high, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbsud(0, 4, 6);
    if (PANELS > 1) {
      _tile_loadd(7, v, 64);
      _tile_dpbsud(1, 4, 7);
    }
    if (ROWS > 1) {
      _tile_loadd(5, low, 64);
      _tile_dpbsud(2, 5, 6);
      if (PANELS > 1) _tile_dpbsud(3, 5, 7);
    }
  }
};

#endif

// The same as `tile_product` below, with ROWS tiles of rows and PANELS panels, 1 or 2 each.
template <int ROWS, int PANELS, class Tiles>
void tile_product(const bf16* x, long steps, Tiles& tiles, float* y, long stride) {
  const bf16* low = x + steps * TILE_SIZE;
  float* const y_low = y + TILE_ROWS * stride;
  const long bytes = stride * sizeof(float);
  asm volatile("" ::: "memory");  // GCC does not know that its tile loads read memory: stores stay before this line
  TileSums<ROWS, PANELS>::zero();
  for (const bf16* const end = low; x < end; x += TILE_SIZE, low += TILE_SIZE) {
    const auto [w, v] = tiles.template next<PANELS>();
    Bf16Step::add<ROWS, PANELS>(x, low, w, v);
  }
  TileSums<ROWS, PANELS>::store(y, y_low, bytes);
}

// y [rows, 16 or 32] = x W^T for up to 32 rows of x, as tiles of `steps` steps. Rows of y are `stride` apart; whole tiles
// of rows are written.
template <class Tiles>
void tile_product(long rows, const bf16* x, long steps, Tiles tiles, float* y, long stride) {
  if (rows > TILE_ROWS)
    tiles.two() ? tile_product<2, 2>(x, steps, tiles, y, stride) : tile_product<2, 1>(x, steps, tiles, y, stride);
  else
    tiles.two() ? tile_product<1, 2>(x, steps, tiles, y, stride) : tile_product<1, 1>(x, steps, tiles, y, stride);
}

// sums [32, 32] = x W^T, or += if ADD, by steps of `Step`. Calls between() after every step.
template <class Step, bool ADD, class Between>
INLINE void tile_block(const BlockFactors& f, float* sums, Between&& between) {
  constexpr long STRIDE = 2 * LANES, BYTES = STRIDE * sizeof(float);
  float* const low_sums = sums + TILE_ROWS * STRIDE;
  asm volatile("" ::: "memory");  // GCC does not know that its tile loads read memory: stores stay before this line
  if (ADD)
    TileSums<2, 2>::load(sums, low_sums, BYTES);
  else
    TileSums<2, 2>::zero();
  const char *high = f.high, *low = f.low, *w = f.w, *v = f.v;
  for (const char* const end = high + f.steps * TILE_BYTES; high < end;
       high += TILE_BYTES, low += TILE_BYTES, w += TILE_BYTES, v += TILE_BYTES) {
    Step::template add<2, 2>(high, low, w, v);
    between();
  }
  TileSums<2, 2>::store(sums, low_sums, BYTES);
}

#else

inline bool have_tiles() { return false; }

struct Bf16Step {};

template <class Step, bool ADD, class Between>
void tile_block(const BlockFactors&, float*, Between&&) {
  __builtin_trap();
}

struct TileScope {
  explicit TileScope(long) {}
};

template <bool COLD>
struct FetchedTiles {
  FetchedTiles(const bf16*, const bf16*) {}
};

template <class Tiles>
void tile_product(long, const bf16*, long, const Tiles&, float*, long) {
  __builtin_trap();
}

#endif
