// How long the parts of run_layers take, for profiles. Where nobody asks, the end of a part costs one comparison.
#pragma once
#include <chrono>
#include <thread>

enum Part { NORMS, QKV_PRODUCT, ROTARY, ATTENTION, OUT_PRODUCT, GATE_UP_PRODUCT, DOWN_PRODUCT, EXPERTS };

// Adds to the seconds of each part, one after the other. Only the thread that made it counts: the others come late to
// loops that are finished already. Of tiles that each thread computes by itself, it counts its own.
class Laps {
 public:
  // `seconds`: by part, or null.
  explicit Laps(double* seconds) : seconds_(seconds) {
    if (seconds_) last_ = Clock::now();
  }

  // The time since the last end was that of `part`.
  void end(Part part) {
    if (!seconds_ || std::this_thread::get_id() != owner_) return;
    const auto now = Clock::now();
    seconds_[part] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* const seconds_;
  const std::thread::id owner_ = std::this_thread::get_id();
  Clock::time_point last_;
};
