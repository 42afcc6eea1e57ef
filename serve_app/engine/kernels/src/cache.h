// How a block of the cache looks inside: keys transposed, so that sixteen keys are one vector of scores;
// values as rows, padded to whole vectors.
#pragma once
#include "vec.h"

struct Cache {
  void* keys;    // [blocks, kv_heads, key_dim, block_size]
  void* values;  // [blocks, kv_heads, block_size, value_pad]
  long kv_heads, key_dim, value_dim, value_pad, block_size;
  long wide;   // float32, not bfloat16
  long tiles;  // attention multiplies on tiles: bfloat16, key_dim a multiple of 32

  template <class T>
  T* key_block(long block, long head) const {
    return (T*)keys + (block * kv_heads + head) * key_dim * block_size;
  }
  template <class T>
  T* value_block(long block, long head) const {
    return (T*)values + (block * kv_heads + head) * block_size * value_pad;
  }
};
