#include "pool.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int SPINS = 2000;  // 0.05 to 0.1 ms: longer than most gaps within a step, shorter than a time slice
constexpr int MAX_THREADS = 256;
constexpr int PATIENCE = 2;  // tasks: how long one that another thread has in hand is waited for
constexpr Clock::duration TASK = std::chrono::microseconds(25);  // guessed by a thread that has done none

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What a thread has in hand: loop << 32 | task << 2 | how far it is. 0: nothing that others may do.
enum Stage : uint64_t { COMPUTED, REPEATED, WRITTEN, TAKEN, MASK = 3 };

struct alignas(64) Slot {
  std::atomic<uint64_t> task{0};
};

// A thread's place in the program it runs; outside of one, or alone, it has no pool.
class Pool;
struct Member {
  Pool* pool = nullptr;
  int index = 0;
  uint64_t loop = 0;  // the one it came to last, from 1
};

thread_local Member member;

class Pool {
 public:
  void run(int threads, void (*program)(void*), void* context) {
    std::unique_lock<std::mutex> one(running_, std::try_to_lock);
    if (!one) return program(context);
    threads_ = std::min(threads, MAX_THREADS);
    grow(threads_ - 1);
    program_ = program, context_ = context;
    next_ = uint64_t{1} << 32;
    done_ = 0;
    number_++;
    open_ = true;
    wake_sleepers();
    take_part(0);
    open_ = false;
    await([this] { return inside_ == 0; });
  }

  long taken_over() const { return taken_over_; }

  void share(Member& me, long count, bool repeatable, Call call, void* context) {
    if (count <= 0) return;
    const uint64_t loop = ++me.loop;
    const auto over = [this, loop] { return next_ >> 32 != loop; };
    const auto began = Clock::now();
    int tasks = 0;
    for (uint64_t next = next_; next >> 32 == loop && (long)(uint32_t)next < count;) {
      if (!next_.compare_exchange_weak(next, next + 1)) continue;
      const uint64_t task = loop << 32 | (next & 0xffffffff) << 2;
      std::atomic<uint64_t>& slot = slots_[me.index].task;
      Turn turn = repeatable ? Turn(&slot, task, false) : Turn();
      if (repeatable) slot = task;
      call(context, (uint32_t)next, turn);
      if (repeatable) slot = 0;
      if (!repeatable || turn.taken()) count_done(loop, count);
      tasks++;
      next = next_;
    }
    if (over()) return;
    if (repeatable) {
      const auto now = Clock::now();
      if (await(over, now + PATIENCE * (tasks ? (now - began) / tasks : TASK))) return;
      for (int i = 0; i < threads_ && !over(); i++) {
        uint64_t task = slots_[i].task;
        if (i == me.index || task >> 32 != loop || (task & MASK) != COMPUTED) continue;
        if (!slots_[i].task.compare_exchange_strong(task, task | REPEATED)) continue;
        Turn turn(&slots_[i].task, task, true);
        call(context, (uint32_t)task >> 2, turn);
        if (!turn.taken()) continue;
        taken_over_++;
        count_done(loop, count);
      }
    }
    await(over);
  }

 private:
  void take_part(int index) {
    member = {this, index, 0};
    program_(context_);
    member = {};
  }

  void count_done(uint64_t loop, long count) {
    if (++done_ < count) return;
    done_ = 0;  // before the next loop begins: nobody counts for it yet
    next_ = (loop + 1) << 32;
    wake_sleepers();
  }

  // Wait until `happened`, or the time is over: a while on this core, then asleep, which leaves it to others.
  template <class F>
  bool await(F&& happened, Clock::time_point until = Clock::time_point::max()) {
    const bool forever = until == Clock::time_point::max();
    for (int spins = 0; !happened(); spins++) {
      if (!forever && spins % 8 == 7 && Clock::now() >= until) return false;
      if (spins < SPINS) {
        pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(sleep_);
      sleepers_++;
      if (forever)
        wake_.wait(lock, happened);
      else
        wake_.wait_until(lock, until, happened);
      sleepers_--;
    }
    return true;
  }

  // After a change that somebody may wait for.
  void wake_sleepers() {
    if (sleepers_ == 0) return;
    { std::lock_guard<std::mutex> lock(sleep_); }
    wake_.notify_all();
  }

  void grow(int helpers) {
    for (; helpers_ < helpers; helpers_++) std::thread(&Pool::help, this, helpers_ + 1).detach();
  }

  void help(int index) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "kernels");
#endif
    long seen = 0;  // the last program we took part in: while others finish it, there is nothing for us
    for (;;) {
      await([this, &seen] { return open_ && number_ != seen; });
      // Entering before looking again: once the caller has closed the program and seen nobody inside, the fields
      // below may change, and whoever comes later finds it closed.
      inside_++;
      if (open_) {
        seen = number_;
        if (index < threads_) take_part(index);
      }
      if (--inside_ == 0) wake_sleepers();
    }
  }

  std::mutex running_, sleep_;
  std::condition_variable wake_;
  std::atomic<bool> open_{false};
  std::atomic<long> number_{0}, done_{0};  // of programs; of tasks of the loop
  std::atomic<uint64_t> next_{0};          // loop << 32 | its next task
  std::atomic<long> taken_over_{0};        // since the process began
  std::atomic<int> inside_{0}, sleepers_{0}, threads_{0};
  Slot slots_[MAX_THREADS];
  void (*program_)(void*) = nullptr;
  void* context_ = nullptr;
  int helpers_ = 0;
};

// Never destroyed, because helpers outlive static objects; a forked child has no helpers and starts its own.
Pool& pool() {
  static std::atomic<Pool*> current{new Pool};
  static std::atomic<pid_t> owner{getpid()};
  if (owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return *current;
}

}  // namespace

bool Turn::mine() {
  if (!slot_) return taken_ = true;
  for (const uint64_t stage : {COMPUTED, REPEATED}) {
    uint64_t expected = task_ | stage;
    if (stands_in_ && stage == COMPUTED) continue;
    if (slot_->compare_exchange_strong(expected, task_ | (stands_in_ ? TAKEN : WRITTEN))) return taken_ = true;
  }
  return false;
}

bool Turn::lost() const {
  const uint64_t now = slot_ ? slot_->load() : task_;
  return !taken_ && now != (task_ | COMPUTED) && now != (task_ | REPEATED);
}

// How many tasks a second thread has finished so far, in place of the one that had begun them.
extern "C" long tasks_taken_over() { return pool().taken_over(); }

bool in_program() { return member.pool != nullptr; }

void run_program(int threads, void (*program)(void*), void* context) {
  if (member.pool || threads <= 1)
    program(context);
  else
    pool().run(threads, program, context);
}

void run_loop(long count, bool repeatable, Call call, void* context) {
  if (member.pool) return member.pool->share(member, count, repeatable, call, context);
  for (long i = 0; i < count; i++) {
    Turn turn;
    call(context, i, turn);
  }
}
