// The recurrence of Mamba: a few numbers for each channel, each with a decay of its own, over the rows of a batch.
#pragma once

// A token multiplies number n of a channel by exp(step * rate) and adds step * x * into[n]. The channel's output is the sum
// of its numbers times out_of.
struct Scan {
  const float* x;       // [t, channels]
  const float* step;    // [t, channels]
  const float* rates;   // [channels, states]
  const float* into;    // [t, states]
  const float* out_of;  // [t, states]
  float* out;           // [t, channels]
  float* pool;          // [slots, channels, states]
  long channels, states;
};
