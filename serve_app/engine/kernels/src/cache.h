// The layout of one layer's KV cache. The keys of a block are transposed, so that a vector of sixteen keys gives a
// vector of sixteen scores; two features of bfloat16 lie together, as a word. Values are rows, padded to whole vectors.
// In a cache of codes (see codes.h), the scales of a block's keys lie behind its keys, and those of its values behind
// its values.
#pragma once
#include "product.h"
#include "vec.h"

// Features of a key that lie together.
template <class T>
constexpr long TOGETHER = 1;
template <>
constexpr long TOGETHER<bf16> = 2;

// Elements that the scale of a key or of a value takes, for each token.
template <class T>
constexpr long SCALE = 0;
template <>
constexpr long SCALE<int8_t> = sizeof(float);

struct Cache {
  void* keys;    // [blocks, kv_heads, key_dim / TOGETHER, block_size, TOGETHER], then scales; key_dim is even
  void* values;  // [blocks, kv_heads, block_size, value_pad], then scales; null: values are latent
  long kv_heads, key_dim, value_dim, value_pad, block_size;
  long element;  // bytes of a number: 4 of float32, 2 of bfloat16, 1 of a code
  long product;  // how attention multiplies: TILES or PAIRS, for a key_dim that is a multiple of 32, else in float32

  // Whether attention rounds queries and weights to bfloat16, and multiplies two numbers at a time.
  bool in_pairs() const { return product == TILES || product == PAIRS; }
  // Whether the values are the first value_dim features of the keys, a multiple of sixteen, and lie nowhere else.
  bool latent() const { return !values; }
  // Whether keys and values are codes with scales.
  bool in_codes() const { return element == sizeof(int8_t); }

  // Bytes of the keys and of the values of one head in one block, with their scales.
  long key_bytes() const { return (key_dim * element + in_codes() * (long)sizeof(float)) * block_size; }
  long value_bytes() const { return (value_pad * element + in_codes() * (long)sizeof(float)) * block_size; }

  // The keys and the values of one head in one block; T is the type of the cache.
  template <class T>
  T* key_block(long block, long head) const {
    return (T*)keys + (block * kv_heads + head) * (key_dim + SCALE<T>)*block_size;
  }
  template <class T>
  T* value_block(long block, long head) const {
    return (T*)values + (block * kv_heads + head) * (value_pad + SCALE<T>)*block_size;
  }
  // The scales [block_size] of these keys and values. Only codes have any.
  template <class T>
  float* key_scales(long block, long head) const {
    return (float*)(key_block<T>(block, head) + key_dim * block_size);
  }
  template <class T>
  float* value_scales(long block, long head) const {
    return (float*)(value_block<T>(block, head) + value_pad * block_size);
  }
};

// Calls run(T{}), where T is the type of a cache.
template <class F>
INLINE_MEMBER auto with_type(const Cache& cache, F&& run) {
  if (cache.element == sizeof(float)) return run(float{});
  return cache.in_codes() ? run(int8_t{}) : run(bf16{});
}
