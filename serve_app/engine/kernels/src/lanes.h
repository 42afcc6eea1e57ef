// Vectors of sixteen lanes. With AVX-512 they are the compiler's own. GCC keeps a vector that is wider than the
// processor's registers in memory, so elsewhere a vector is two halves, or four quarters, that fit.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Functions that only fetch memory must have one of these: GCC takes them for functions without an effect, and leaves calls of
// them out, unless it has put their code in place of the call before it looks.
#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

constexpr long LANES = 16;

// The lower and the upper half of the lanes of a vector.
template <class V>
struct Halves {
  V low, high;
};

typedef float F8 __attribute__((vector_size(32)));
typedef float F4 __attribute__((vector_size(16)));
typedef int8_t C16 __attribute__((vector_size(16)));

// Lanes of `mask` that are not 0 take those of a, the others those of b.
template <class M, class V>
INLINE V where(M mask, V a, V b) {
  return mask ? a : b;
}

// The lanes of `from` as numbers of the type of To.
template <class To, class From>
INLINE To convert(From from) {
  return __builtin_convertvector(from, To);
}

// Whether a vector is two halves.
template <class V>
struct IsTwo : std::false_type {};

// The bytes at p as lanes, half by half: a copy of both halves at once would go through memory.
template <class V>
INLINE V load_bytes(const void* p) {
  if constexpr (IsTwo<V>::value) {
    using Half = decltype(V::low);
    return {load_bytes<Half>(p), load_bytes<Half>((const char*)p + sizeof(Half))};
  } else {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
  }
}

template <class V>
INLINE void store_bytes(void* p, V v) {
  if constexpr (IsTwo<V>::value)
    store_bytes(p, v.low), store_bytes((char*)p + sizeof v.low, v.high);
  else
    memcpy(p, &v, sizeof v);
}

// The halves of a vector as vectors of the type H.
template <class H, class V>
INLINE Halves<H> halves(V v) {
  if constexpr (IsTwo<V>::value)
    if constexpr (!IsTwo<decltype(V::low)>::value) return {(H)v.low, (H)v.high};
  Halves<H> both;
  memcpy(&both, &v, sizeof both);
  return both;
}

#ifdef __AVX512F__

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef uint16_t W32 __attribute__((vector_size(64)));
typedef uint8_t B64 __attribute__((vector_size(64)));

constexpr int REGISTERS = 32;

// Both halves as one vector.
template <class V, class H>
INLINE V joined(H low, H high) {
  V v;
  memcpy(&v, &low, sizeof low), memcpy((char*)&v + sizeof low, &high, sizeof high);
  return v;
}

// The low bytes of all lanes.
INLINE C16 to_bytes(I16 v) { return convert<C16>(v); }

// All lanes are x. They are spelt out, as `F16{} + x` would be an addition, which turns -0 into 0.
INLINE F16 splat(float x) { return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

#else

template <class V>
struct Two;

template <class V>
struct IsTwo<Two<V>> : std::true_type {};

template <class V>
struct LaneOf {
  using type = std::remove_reference_t<decltype(std::declval<V&>()[0])>;
};
template <class V>
struct LaneOf<Two<V>> : LaneOf<V> {};

template <class V>
struct Two {
  using Lane = typename LaneOf<V>::type;

  V low, high;

  Two() = default;
  INLINE_MEMBER Two(V low, V high) : low(low), high(high) {}
  // The same bits as lanes of another type.
  template <class W>
  INLINE_MEMBER explicit Two(Two<W> bits) : low((V)bits.low), high((V)bits.high) {}

  INLINE_MEMBER Lane operator[](long i) const {
    Lane lane;
    memcpy(&lane, (const char*)this + i * sizeof lane, sizeof lane);
    return lane;
  }
};

#define BINARY(op)                                                                                   \
  template <class V>                                                                                 \
  INLINE auto operator op(Two<V> a, Two<V> b) {                                                      \
    return Two<std::decay_t<decltype(a.low op b.low)>>(a.low op b.low, a.high op b.high);            \
  }                                                                                                  \
  template <class V, class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>                     \
  INLINE auto operator op(Two<V> a, S b) {                                                           \
    const auto lane = (typename Two<V>::Lane)b;                                                      \
    return Two<std::decay_t<decltype(a.low op lane)>>(a.low op lane, a.high op lane);                \
  }                                                                                                  \
  template <class V, class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>                     \
  INLINE auto operator op(S a, Two<V> b) {                                                           \
    const auto lane = (typename Two<V>::Lane)a;                                                      \
    return Two<std::decay_t<decltype(lane op b.low)>>(lane op b.low, lane op b.high);                \
  }
#define CHANGING(op)                                                                                 \
  BINARY(op)                                                                                         \
  template <class V, class W>                                                                        \
  INLINE Two<V>& operator op##=(Two<V>& a, W b) {                                                    \
    return a = a op b;                                                                               \
  }
CHANGING(+) CHANGING(-) CHANGING(*) CHANGING(/) CHANGING(&) CHANGING(|) CHANGING(^) CHANGING(<<) CHANGING(>>)
BINARY(==) BINARY(!=) BINARY(<) BINARY(>)
#undef CHANGING
#undef BINARY

template <class V>
INLINE Two<V> operator-(Two<V> a) {
  return {-a.low, -a.high};
}

template <class M, class V>
INLINE Two<V> where(Two<M> mask, Two<V> a, Two<V> b) {
  return {where(mask.low, a.low, b.low), where(mask.high, a.high, b.high)};
}

template <class To, class From>
INLINE To convert(Two<From> from) {
  return {convert<decltype(To::low)>(from.low), convert<decltype(To::low)>(from.high)};
}

INLINE void fill(F8& v, float x) { v = F8{x, x, x, x, x, x, x, x}; }
INLINE void fill(F4& v, float x) { v = F4{x, x, x, x}; }
template <class V>
INLINE void fill(Two<V>& v, float x) {
  fill(v.low, x), v.high = v.low;
}

template <class T, int N>
struct Vector {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

#ifdef __AVX2__

template <class T, int N>
using Lanes = Two<typename Vector<T, N / 2>::type>;

constexpr int REGISTERS = 16 / 2;

#else

template <class T, int N>
using Lanes = Two<Two<typename Vector<T, N / 4>::type>>;

#ifdef __aarch64__
constexpr int REGISTERS = 32 / 4;
#else
constexpr int REGISTERS = 16 / 4;
#endif

#endif

using F16 = Lanes<float, 16>;
using I16 = Lanes<int32_t, 16>;
using U16 = Lanes<uint32_t, 16>;
using H16 = Lanes<uint16_t, 16>;
using W32 = Lanes<uint16_t, 32>;
using B64 = Lanes<uint8_t, 64>;

template <class V, class H>
INLINE V joined(H low, H high) {
  return {(decltype(V::low))low, (decltype(V::low))high};
}

INLINE C16 to_bytes(I16 v) {
  const auto parts = convert<Lanes<int8_t, 16>>(v);
  C16 bytes;
  memcpy(&bytes, &parts, sizeof bytes);
  return bytes;
}

INLINE F16 splat(float x) {
  F16 v;
  fill(v, x);
  return v;
}

#endif

// REGISTERS: how many vectors of sixteen lanes the processor's registers hold. So many of them can be sums.
constexpr int SUMS = REGISTERS / 4 * 3;

// How many vectors, from 1 to `most`, a product of `rows` rows takes at once, so that its sums stay in registers.
constexpr int vectors_at_once(int rows, int most) {
  return SUMS / rows >= most ? most : SUMS / rows > 1 ? SUMS / rows : 1;
}
