// The loops of a program, one after another. The threads of the program share the tasks of a loop.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool.h"
#include "waiting.h"

constexpr int MAX_THREADS = 256;

class SharedLoop {
 public:
  explicit SharedLoop(Waiting& waiting) : waiting_(waiting) {}

  // Begins loop 1 of a program. No thread may be in a loop.
  void begin(int threads);

  // Does tasks of `loop` until none is left, and returns when all are done. `index`: the number of the calling thread.
  void share(int index, uint64_t loop, long count, bool repeatable, Call call, void* context);

  // The number of tasks that stand-ins have written since the process began.
  long taken_over() const { return taken_over_; }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> task{0};  // the task that a thread has in hand, and its stage (see turn.h)
  };

  bool over(uint64_t loop) const { return next_ >> 32 != loop; }
  void stand_in(int index, uint64_t loop, long count, Call call, void* context);
  void count_done(uint64_t loop, long count);

  Waiting& waiting_;
  std::atomic<long> done_{0};      // the number of finished tasks of the loop
  std::atomic<uint64_t> next_{0};  // loop << 32 | next task
  std::atomic<long> taken_over_{0};
  std::atomic<int> threads_{0};
  Slot slots_[MAX_THREADS];
};
