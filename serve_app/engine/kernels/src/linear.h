// A linear layer with packed weights. A decoder stores its outputs, adds them to the residual stream or gates them.
#pragma once

// How a product is computed. Sums are float32, and the order of a row's sums does not depend on the other rows.
enum Product : long {
  FLOATS,   // float32 weights
  WIDENED,  // bfloat16 weights, widened to float32 as they are used
  PAIRS,    // bfloat16 weights and inputs, two inputs at a time (AVX512-BF16)
  TILES,    // bfloat16 weights and inputs, a tile at a time (AMX)
};

struct Linear {
  const void* weight;  // panels from pack_weight
  const float* bias;   // padded to whole panels, or null
  long outputs, inputs;
  long product;  // a Product
};

// Floats of memory that the functions below need as `room`, where they round `rows` rows of inputs to bfloat16.
long rounding_room(const Linear& linear, long rows);

// x [rows, inputs] -> y [rows, outputs].
void project(const Linear& linear, const float* x, float* y, long rows, float* room, int threads);

// y [rows, outputs] += the projection of x [rows, inputs].
void add_projection(const Linear& linear, const float* x, float* y, long rows, float* room, int threads);

// y [rows, outputs / 2] = act(gate) * value. The first half of the outputs are gates, the other half are values;
// outputs / 2 is a multiple of sixteen. act is GELU in its tanh form if `gelu`, else SiLU.
void project_gated(const Linear& linear, const float* x, float* y, long rows, bool gelu, float* room, int threads);
