// The layout of one layer's KV cache. The keys of a block are transposed, so that a vector of sixteen keys gives a
// vector of sixteen scores. Values are rows, padded to whole vectors.
#pragma once
#include "vec.h"

struct Cache {
  void* keys;    // [blocks, kv_heads, key_dim, block_size]
  void* values;  // [blocks, kv_heads, block_size, value_pad]
  long kv_heads, key_dim, value_dim, value_pad, block_size;
  long wide;   // 1: keys and values are float32, 0: bfloat16
  long tiles;  // 1: attention multiplies on tile registers; keys are bfloat16 and key_dim is a multiple of 32

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
