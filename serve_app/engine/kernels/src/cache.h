// The layout of one layer's KV cache. The keys of a block are transposed, so that a vector of sixteen keys gives a
// vector of sixteen scores; two features of bfloat16 lie together, as a word. Values are rows, padded to whole vectors.
#pragma once
#include "product.h"
#include "vec.h"

// Features of a key that lie together.
template <class T>
constexpr long TOGETHER = sizeof(float) / sizeof(T);

struct Cache {
  void* keys;    // [blocks, kv_heads, key_dim / TOGETHER, block_size, TOGETHER]; key_dim is even
  void* values;  // [blocks, kv_heads, block_size, value_pad]
  long kv_heads, key_dim, value_dim, value_pad, block_size;
  long wide;     // 1: keys and values are float32, 0: bfloat16
  long product;  // how attention multiplies: TILES or PAIRS, for a key_dim that is a multiple of 32, else in float32

  // Whether attention rounds queries and weights to bfloat16, and multiplies two numbers at a time.
  bool in_pairs() const { return product == TILES || product == PAIRS; }

  // The keys and the values of one head in one block; T is the type of the cache.
  template <class T>
  T* key_block(long block, long head) const {
    return (T*)keys + (block * kv_heads + head) * key_dim * block_size;
  }
  template <class T>
  T* value_block(long block, long head) const {
    return (T*)values + (block * kv_heads + head) * block_size * value_pad;
  }
};
