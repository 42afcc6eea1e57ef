#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int SPINS = 2000;  // about 0.1 ms: longer than the gaps within a step, shorter than a time slice

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void run(long count, int threads, void (*call)(void*, long), void* context) {
    std::unique_lock<std::mutex> one(running_, std::try_to_lock);
    if (!one || threads <= 1 || count <= 1) {
      for (long i = 0; i < count; i++) call(context, i);
      return;
    }
    grow(threads - 1);
    call_ = call, context_ = context, count_ = count, helpers_ = threads - 1;
    next_ = 0;
    loop_++;
    open_ = true;
    if (sleepers_ > 0) {
      { std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
    work();
    open_ = false;
    for (int spins = 0; inside_ != 0; spins++) {
      if (spins < SPINS) {
        pause();
        continue;
      }
      // The helper was interrupted in the middle of a task. Asleep, we leave it our core.
      std::unique_lock<std::mutex> lock(leave_);
      waiting_ = true;
      left_.wait(lock, [this] { return inside_ == 0; });
      waiting_ = false;
    }
  }

 private:
  void work() {
    for (long i; (i = next_++) < count_;) call_(context_, i);
  }

  void grow(int helpers) {
    for (; (int)size_ < helpers; size_++) std::thread(&Pool::help, this, (int)size_).detach();
  }

  void help(int index) {
    long seen = 0;  // the last loop we took part in: while others finish it, there is nothing for us
    auto is_next = [this, &seen] { return open_ && loop_ != seen; };
    for (;;) {
      for (int spins = 0; !is_next(); spins++) {
        if (spins < SPINS) {
          pause();
          continue;
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_++;
        wake_.wait(lock, is_next);
        sleepers_--;
      }
      // Entering before looking again: once the caller has closed the loop and seen nobody inside, the fields
      // below may change, and whoever comes later finds it closed.
      inside_++;
      if (open_) {
        seen = loop_;
        if (index < helpers_) work();
      }
      if (--inside_ == 0 && waiting_) {
        { std::lock_guard<std::mutex> lock(leave_); }
        left_.notify_one();
      }
    }
  }

  std::mutex running_, sleep_, leave_;
  std::condition_variable wake_, left_;
  std::atomic<bool> open_{false}, waiting_{false};
  std::atomic<long> loop_{0};
  std::atomic<int> inside_{0}, sleepers_{0}, helpers_{0};
  std::atomic<long> next_{0}, count_{0};
  void (*call_)(void*, long) = nullptr;
  void* context_ = nullptr;
  size_t size_ = 0;
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

void run_tasks(long count, int threads, void (*call)(void*, long), void* context) {
  pool().run(count, threads, call, context);
}
