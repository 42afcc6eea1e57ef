// A linear layer with packed weights, and what a decoder does with its outputs.
#pragma once

// How a product is computed. Sums are float32 everywhere, in an order that no other row has a part in.
enum Product : long {
  FLOATS,   // float32 weights
  WIDENED,  // bfloat16 weights, each widened to float32 when it is used
  PAIRS,    // bfloat16 weights and inputs, two at a time (AVX512-BF16)
  TILES,    // bfloat16 weights and inputs, tile by tile (AMX)
};

struct Linear {
  const void* weight;  // of pack_weight
  const float* bias;   // padded to whole panels, or null
  long outputs, inputs;
  long product;
};

// Floats that the functions below need to round their inputs in.
long rounding_room(const Linear& linear, long rows);

// x [rows, inputs] -> y [rows, outputs]
void project(const Linear& linear, const float* x, float* y, long rows, float* room, int threads);

// The same, added to what y holds.
void add_projection(const Linear& linear, const float* x, float* y, long rows, float* room, int threads);

// Outputs are gates and as many values, a multiple of sixteen each: y [rows, outputs / 2] = act(gate) * value.
void project_gated(const Linear& linear, const float* x, float* y, long rows, bool gelu, float* room, int threads);
