#include "shared_loop.h"

namespace {

constexpr int PATIENCE = 2;  // a thread without tasks waits for the time of two tasks, and then stands in for another
constexpr Clock::duration TASK = std::chrono::microseconds(25);  // the guess of a thread that has done no task

}  // namespace

void SharedLoop::begin(int threads) {
  threads_ = threads;
  next_ = uint64_t{1} << 32;
  done_ = 0;
}

void SharedLoop::share(int index, uint64_t loop, long count, bool repeatable, Call call, void* context) {
  const auto began = Clock::now();
  int tasks = 0;
  for (uint64_t next = next_; next >> 32 == loop && (long)(uint32_t)next < count;) {
    if (!next_.compare_exchange_weak(next, next + 1)) continue;
    const uint64_t task = loop << 32 | (next & 0xffffffff) << 2;
    std::atomic<uint64_t>& slot = slots_[index].task;
    Turn turn = repeatable ? Turn(&slot, task, false) : Turn();
    if (repeatable) slot = task;
    call(context, (uint32_t)next, turn);
    if (repeatable) slot = 0;
    if (!repeatable || turn.taken()) count_done(loop, count);
    tasks++;
    next = next_;
  }
  if (over(loop)) return;
  if (repeatable) {
    const auto now = Clock::now();
    const auto patience = PATIENCE * (tasks ? (now - began) / tasks : TASK);
    if (waiting_.await([&] { return over(loop); }, now + patience)) return;
    stand_in(index, loop, count, call, context);
  }
  waiting_.await([&] { return over(loop); });
}

// Does the tasks that other threads still have in hand.
void SharedLoop::stand_in(int index, uint64_t loop, long count, Call call, void* context) {
  for (int i = 0; i < threads_ && !over(loop); i++) {
    std::atomic<uint64_t>& slot = slots_[i].task;
    uint64_t task = slot;
    if (i == index || task >> 32 != loop || (task & MASK) != COMPUTED) continue;
    if (!slot.compare_exchange_strong(task, task | REPEATED)) continue;
    stand_in_waits(slot, task);
    Turn turn(&slot, task, true);
    call(context, (uint32_t)task >> 2, turn);
    if (!turn.taken()) continue;
    taken_over_++;
    count_done(loop, count);
  }
}

void SharedLoop::count_done(uint64_t loop, long count) {
  if (++done_ < count) return;
  done_ = 0;  // before the next loop begins, so that no thread counts for that loop yet
  next_ = (loop + 1) << 32;
  waiting_.wake_sleepers();
}
