#include "turn.h"

#include <chrono>
#include <initializer_list>
#include <thread>

#include "exports.h"

namespace {

std::atomic<long> preempted{NOBODY};  // the thread that a test makes wait
std::atomic<long> waits{0};           // waits that ended as the test wished, since it last asked
std::atomic<bool> waiting{false};     // whether an owner waits: one at a time, as other threads must finish the loop

// Lets other threads run until happened() is true, for at most a second.
template <class F>
void wait_for(F&& happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > end) return;
    std::this_thread::yield();
  }
  waits++;
}

void owner_waits(const std::atomic<uint64_t>& slot, Stage stage) {
  if (waiting.exchange(true)) return;
  wait_for([&] { return (slot & MASK) == stage; });
  waiting = false;
}

}  // namespace

bool Turn::mine() {
  if (!slot_) return taken_ = true;
  if (const long whom = preempted.load(std::memory_order_relaxed); whom != NOBODY && !stands_in_)
    owner_waits(*slot_, whom == OWNER ? TAKEN : REPEATED);
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

void stand_in_waits(const std::atomic<uint64_t>& slot, uint64_t task) {
  if (preempted.load(std::memory_order_relaxed) == STAND_IN) wait_for([&] { return slot != (task | REPEATED); });
}

long simulate_preemption(long whom) {
  preempted = whom;
  return waits.exchange(0);
}
