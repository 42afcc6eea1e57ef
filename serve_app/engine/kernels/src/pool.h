// Threads that help with a loop. Whoever is late is not waited for: the caller takes tasks itself until none is
// left, then waits only for helpers in the middle of one. On cores shared with other processes this is what keeps
// a step from stalling for a scheduler's time slice at each of its two hundred loops, as fixed barriers do.
#pragma once
#include <algorithm>

// Run call(context, i) for every i in [0, count) on up to `threads` threads, the caller's included. From a second
// thread at the same time it runs serially.
void run_tasks(long count, int threads, void (*call)(void*, long), void* context);

template <class F>
void parallel(long count, int threads, F&& task) {
  run_tasks(count, threads, [](void* f, long i) { (*(std::remove_reference_t<F>*)f)(i); }, &task);
}

// task(first, last) over ranges of rows; in the caller alone when there is little work in all of them.
template <class F>
void parallel_rows(long rows, long row_elements, int threads, F&& task) {
  const long worthwhile = rows * row_elements / 16384;  // elements that pay for waking somebody
  const long ranges = std::min({rows, worthwhile, 8L * threads});
  if (ranges <= 1) return task(0L, rows);
  parallel(ranges, threads, [&](long i) { task(rows * i / ranges, rows * (i + 1) / ranges); });
}
