// Threads that compute a program together: all run the same code and share the tasks of its loops.
//
// A thread that comes late finds loops finished and goes on to the next loop. So no thread waits for one that has lost
// its core to another process. Where a task allows it, another thread does the task that such a thread has in hand (see
// turn.h).
#pragma once
#include <algorithm>
#include <type_traits>

#include "turn.h"

// Runs program(context) on up to `threads` threads at once, the caller's included. Returns when all have left it. Every
// thread must come to the same loops in the same order. A program inside another program has one thread, as has a
// program that begins while one of another thread is running.
void run_program(int threads, void (*program)(void*), void* context);

// Runs program() in the same way.
template <class F>
void together(int threads, F&& program) {
  run_program(threads, [](void* f) { (*(std::remove_reference_t<F>*)f)(); }, (void*)&program);
}

// Calls call(context, i, turn) for every i in [0, count), on all threads of the program that the calling thread is in.
// `repeatable`: two threads may do the same task.
using Call = void (*)(void*, long, Turn&);
void run_loop(long count, bool repeatable, Call call, void* context);

// Milliseconds since the last program of this process ended; 0 while one runs.
long idle_ms();

// Whether the calling thread is in a program with other threads.
bool in_program();

// While it lives, the calling thread is as one without a program: it does all tasks of its loops itself.
class Alone {
 public:
  Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone();

 private:
  class SharedLoop* const shared_;
};

// Calls task(i) for every i in [0, count) on up to `threads` threads; or task(i, turn), where two threads may do the
// same task. Such a task computes into memory of its own, and writes to common memory only if turn.mine().
template <class F>
void parallel(long count, int threads, F&& task) {
  using Task = std::remove_reference_t<F>;
  const Call call = [](void* f, long i, Turn& turn) {
    if constexpr (std::is_invocable_v<Task&, long, Turn&>)
      (*(Task*)f)(i, turn);
    else
      (*(Task*)f)(i);
  };
  const auto loop = [&] { run_loop(count, std::is_invocable_v<Task&, long, Turn&>, call, (void*)&task); };
  in_program() || count <= 1 ? loop() : together(threads, loop);
}

// Calls task(first, last) for ranges of rows. If all rows are little work, there is one range.
template <class F>
void parallel_rows(long rows, long row_elements, int threads, F&& task) {
  const long worthwhile = rows * row_elements / 16384;  // elements that pay for waking another thread
  const long ranges = std::max(1L, std::min({rows, worthwhile, 8L * threads}));
  parallel(ranges, threads, [&](long i) { task(rows * i / ranges, rows * (i + 1) / ranges); });
}
