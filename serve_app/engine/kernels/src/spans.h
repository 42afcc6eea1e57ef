// Spans of rows of a batch: tokens of one sequence, between the states in one slot and those in another.
#pragma once
#include <cstdint>

#include "pool.h"

struct Span {
  long first, length;   // rows
  long source, target;  // the slots of the states before and after
};

// Calls task(span, part) for each of `parts` of every span. spans [4, count]: the fields of the spans. A token has `numbers`
// to compute; the caller works alone if all tokens have fewer than `worthwhile`.
template <class F>
void over_spans(const int64_t* spans, long count, long parts, long numbers, long worthwhile, int threads, F&& task) {
  long tokens = 0;
  for (long s = 0; s < count; s++) tokens += spans[count + s];
  parallel(count * parts, tokens * numbers < worthwhile ? 1 : threads, [&](long i) {
    const int64_t* const s = spans + i / parts;
    task(Span{s[0], s[count], s[2 * count], s[3 * count]}, i % parts);
  });
}
