// A causal convolution over the last tokens of a sequence, each channel alone, over the rows of a batch.
#pragma once

// A token's output in a channel is the sum of the channel's last `width` inputs times their factors, the oldest first, plus
// the bias; with `silu`, SiLU of that. The state of a sequence has the inputs of its last width - 1 tokens.
struct Convolution {
  const void* x;       // [t, channels]
  const void* weight;  // [channels, width]: the factor of the oldest input is the first
  const void* bias;    // [channels], or null
  void* out;           // [t, channels]
  void* pool;          // [slots, width - 1, channels]
  long channels, width, silu;
  long wide;  // 1: all numbers are float32, 0: bfloat16. Sums are float32.
};
