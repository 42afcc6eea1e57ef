// The experts of one layer: gated MLPs of which each row takes a few.
#pragma once
#include <cstdint>

#include "linear.h"

struct Experts {
  const Linear* gate_up;  // [count]: the first half of the outputs are gates, the other half are ups
  const Linear* down;     // [count]
  long count, gelu;       // gelu 1: gates by GELU in its tanh form, 0: by SiLU
  // If `limit` is not 0: gates are at most limit, ups from -limit to limit, and an expert's inner numbers are
  // gate * sigmoid(alpha * gate) * (up + added).
  float limit, alpha, added;
};

struct Choices {
  const int64_t* experts;  // [rows, each]: different ones; a number from count on: none
  const float* weights;    // [rows, each]
  long rows, each;
};
