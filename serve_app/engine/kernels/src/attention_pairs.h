// Two neighbouring features of keys, and the values of two neighbouring keys, out of a cache of any type.
#pragma once
#include "cache.h"
#include "pairs.h"

namespace {

// Sixteen pairs: a number of `even` and a number of `odd` each. Codes are exact in bfloat16.
template <class T>
INLINE U16 interleaved(const T* even, const T* odd) {
  return ((U16)load(even) >> 16) | (U16)load(odd);
}

// Two neighbouring features of sixteen keys of a block of `size`, as words.
template <class T>
INLINE U16 key_words(const T* keys, long size) {
  return interleaved(keys, keys + size);
}
INLINE U16 key_words(const bf16* keys, long) { return load_words(keys); }

// The same in float32.
template <class T>
INLINE Pair key_pair(const T* keys, long size) {
  return {load(keys), load(keys + size)};
}
INLINE Pair key_pair(const bf16* keys, long) { return load_pair(keys); }

}  // namespace
