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

// Chooses the `each` experts of a row that have the largest scores, the first of equal ones. A score is the softmax over all
// outputs or, if `sigmoid`, the sigmoid of one output. The weights of the chosen are their scores, divided by their sum if
// `normalised`, times `scale`.
struct Router {
  Linear linear;
  const float* correction;  // [outputs], added to scores for the choice alone, or null
  long each, sigmoid, normalised;
  // The experts are in `groups` equal groups. Only those of the `kept` groups with the largest sums of their `best` (1 or 2)
  // largest scores may be chosen. groups 1: all may be.
  long groups, kept, best;
  float scale;
};

struct Mixture {
  Router router;
  Experts experts;
  Experts shared;  // of count 1: what every row takes besides; of count 0: nothing
  Linear gate;     // of one output: its sigmoid is the weight of what is shared; without outputs: the weight is 1
};

// The rows of each expert. Threads share it, and it does not change while a program runs: a thread that comes late finds
// in it what the others found.
struct ByExpert {
  long* first;   // [count + 1]
  long* places;  // [rows * each]: those of expert e, of choices, are at [first[e], first[e + 1])
  long* index;   // [rows * each]: where in `places` the choices of a row are, in the order of their experts; -1: none
  long* chosen;  // [count]: the experts that have rows, those with the most rows first
  long* used;     // [1]: how many those are

  // Longs of memory.
  static long size(long count, const Choices& c) { return 2 * count + 2 + 2 * c.rows * c.each; }

  ByExpert(long* memory, long count, const Choices& c)
      : first(memory), places(first + count + 1), index(places + c.rows * c.each), chosen(index + c.rows * c.each),
        used(chosen + count) {}

  void fill(const Choices& c, long count);
  long rows(long e) const { return first[e + 1] - first[e]; }
};

// Floats of memory that the threads of a program share in `compute_experts`, for that many rows.
long experts_room(const Experts& experts, long rows, long each, int threads);

// As run_experts in exports.h, for all threads of a program. `by`: filled for these choices.
void compute_experts(const Experts& experts, const Choices& choices, const ByExpert& by, const float* x, float* out,
                     float* room, int threads);

// Floats of memory that the threads share in `compute_mixture`, and longs that belong to this mixture in a program.
long mixture_room(const Mixture& mixture, long rows, int threads);
long mixture_numbers(const Mixture& mixture, long rows);

// As run_mixture in exports.h, for all threads of a program.
void compute_mixture(const Mixture& mixture, const float* x, const float* shared, float* out, long rows, float* room,
                     long* numbers, int threads);
