// Waiting for other threads. A waiting thread spins for a while, then sleeps and leaves its core to others.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

using Clock = std::chrono::steady_clock;

class Waiting {
 public:
  // Waits until happened() is true, or until the time is over. Returns whether it is true.
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

  // Wakes the threads that sleep. To be called after every change that a thread may wait for.
  void wake_sleepers() {
    if (sleepers_ == 0) return;
    { std::lock_guard<std::mutex> lock(sleep_); }
    wake_.notify_all();
  }

 private:
  static constexpr int SPINS = 2000;  // 0.05 to 0.1 ms: longer than most gaps in a step, shorter than a time slice

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};
