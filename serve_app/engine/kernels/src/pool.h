// Threads that compute a program together: all run the same code and share the tasks of its loops. Whoever is late
// finds its loops finished and catches up, so that on cores shared with other processes nobody waits for a thread
// that the system has put aside. A task that it holds is done by somebody else, if the task allows that.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

// Run program(context) on up to `threads` threads at once, the caller's included; returns when all have left it.
// Each must come to the same loops in the same order. A program within one, or beside another thread's, has one thread.
void run_program(int threads, void (*program)(void*), void* context);

template <class F>
void together(int threads, F&& program) {
  run_program(threads, [](void* f) { (*(std::remove_reference_t<F>*)f)(); }, (void*)&program);
}

// The right to write what a task has computed: of two threads that do the same task, one gets it. The other may read
// inputs that have changed since, and its outputs are of no use; so it must find its way by what stays as it is.
class Turn {
 public:
  // Of a task that nobody else may do.
  Turn() = default;
  // Of the task in `slot`, whose thread has it in hand, or is put aside and replaced.
  Turn(std::atomic<uint64_t>* slot, uint64_t task, bool stands_in) : slot_(slot), task_(task), stands_in_(stands_in) {}

  // Whether the caller may write. Asked once by each, before it writes and after all else.
  bool mine();
  bool taken() const { return taken_; }
  // Whether the other thread has written already, so that to go on is of no use.
  bool lost() const;

 private:
  std::atomic<uint64_t>* slot_ = nullptr;
  uint64_t task_ = 0;
  bool stands_in_ = false, taken_ = false;
};

using Call = void (*)(void*, long, Turn&);

// Call call(context, i, turn) for every i in [0, count), by all threads of the program that this one runs in.
void run_loop(long count, bool repeatable, Call call, void* context);

// Whether the calling thread is in a program with others.
bool in_program();

// task(i) for every i in [0, count) on up to `threads` threads, or task(i, turn) where two threads may do the same
// task: into memory of its own first, and into common memory only if turn.mine().
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

// task(first, last) over ranges of rows; one range when there is little work in all of them.
template <class F>
void parallel_rows(long rows, long row_elements, int threads, F&& task) {
  const long worthwhile = rows * row_elements / 16384;  // elements that pay for waking somebody
  const long ranges = std::max(1L, std::min({rows, worthwhile, 8L * threads}));
  parallel(ranges, threads, [&](long i) { task(rows * i / ranges, rows * (i + 1) / ranges); });
}
