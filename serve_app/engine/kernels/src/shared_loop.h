// The loops of a program, one after another, whose tasks its threads share.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool.h"
#include "waiting.h"

constexpr int MAX_THREADS = 256;

class SharedLoop {
 public:
  explicit SharedLoop(Waiting& waiting) : waiting_(waiting) {}

  // Begin with loop 1 of a program; nobody may be in a loop.
  void begin(int threads);

  // Do tasks of `loop` until there is none left, then return when all are done. `index`: the calling thread's number.
  void share(int index, uint64_t loop, long count, bool repeatable, Call call, void* context);

  // Tasks that a stand-in has written, since the process began.
  long taken_over() const { return taken_over_; }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> task{0};  // that the thread has in hand, and its stage
  };

  bool over(uint64_t loop) const { return next_ >> 32 != loop; }
  void stand_in(int index, uint64_t loop, long count, Call call, void* context);
  void count_done(uint64_t loop, long count);

  Waiting& waiting_;
  std::atomic<long> done_{0};      // tasks of the loop
  std::atomic<uint64_t> next_{0};  // loop << 32 | its next task
  std::atomic<long> taken_over_{0};
  std::atomic<int> threads_{0};
  Slot slots_[MAX_THREADS];
};
