// How products on vector registers fetch weights that they read soon and once.
#pragma once
#include "vec.h"

namespace {

// The cache that a line goes into, as __builtin_prefetch counts: 3 is the first level, 2 the second.
//
// Measured on AMD's Zen 4: products of few rows read a third to three quarters more a second by the second level, as few
// lines may be on their way to the first one at once. Intel's cores have been measured with the first level alone.
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
constexpr int WEIGHT_CACHE = 2;
constexpr long QUANTIZED_AHEAD = 4096;  // bytes of a quantised panel fetched ahead
#else
constexpr int WEIGHT_CACHE = 3;
constexpr long QUANTIZED_AHEAD = 2048;
#endif

INLINE void fetch_weights(const void* line) { __builtin_prefetch(line, 0, WEIGHT_CACHE); }

}  // namespace
