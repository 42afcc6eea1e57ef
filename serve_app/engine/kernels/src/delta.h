// What lies between the projections of a layer with a gated delta rule, over the rows of a batch.
#pragma once

// A row of `projected` has what a layer's first product makes of a token: queries and keys [groups, keys], values [heads,
// values], the gates of outputs [heads, values], and for each head the part that it corrects and its step.
//
// Queries, keys and values are convolved as in convolution.h, with SiLU; queries and keys get a length of 1, and queries a
// factor of 1 / sqrt(keys). A head's matrix advances as in recurrence.h, by a decay of exp(rate * softplus(step + bias)) and
// sigmoid(part). The head's output is normalised, and multiplied by SiLU of its gates.
struct Delta {
  const float* projected;  // [t, channels + heads * values + 2 * heads], channels: 2 * groups * keys + heads * values
  const float* factors;    // [width, channels]: those of the oldest input are the first
  const float* rates;      // [heads]
  const float* biases;     // [heads]
  const float* norm;       // [values]
  float* out;              // [t, heads, values]
  float* windows;          // [slots, width - 1, channels]: the last inputs of the convolution
  float* pool;             // [slots, heads, keys, values]: the matrices
  long heads, groups, keys, values, width;  // keys and values are multiples of 16
  float eps;
};
