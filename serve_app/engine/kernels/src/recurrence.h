// A recurrence over a matrix for each head, over the rows of a batch.
#pragma once

// A token of a head multiplies the head's matrix [keys, values] by `decay`, for each key if `decays` is `keys`, for the
// whole if it is 1. Then the matrix gains key * delta, where delta is value, or with `part` the part of what value differs
// from the matrix's value of key. The output is the value of query.
struct Recurrence {
  const float* query;  // [t, groups, keys]: a group serves heads / groups heads
  const float* key;    // [t, groups, keys]
  const float* value;  // [t, heads, values]
  const float* decay;  // [t, heads, decays]
  const float* part;   // [t, heads], or null
  float* out;          // [t, heads, values]
  float* pool;         // [slots, heads, keys, values]
  long heads, groups, keys, values, decays;
};
