// A linear layer with packed weights, and what a decoder does with its outputs.
#pragma once

struct Linear {
  const void* weight;  // of pack_weight
  const float* bias;   // padded to whole panels, or null
  long outputs, inputs;
  long wide;  // weights are float32, not bfloat16
};

// x [rows, inputs] -> y [rows, outputs]
void project(const Linear& linear, const float* x, float* y, long rows, int threads);

// The same, added to what y holds.
void add_projection(const Linear& linear, const float* x, float* y, long rows, int threads);

// Outputs are gates and as many values, a multiple of sixteen each: y [rows, outputs / 2] = act(gate) * value.
void project_gated(const Linear& linear, const float* x, float* y, long rows, bool gelu, int threads);
