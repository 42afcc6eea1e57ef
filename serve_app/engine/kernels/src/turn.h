// The right to write what a task has computed, when two threads do the same task.
//
// The owner of a task may lose its core in the middle of the task. Then a stand-in repeats the task, and the thread
// that takes its turn first writes. The other thread may have read inputs that changed meanwhile, and its outputs are
// of no use. So the control flow of a task must depend only on data that does not change.
#pragma once
#include <atomic>
#include <cstdint>

// The stage of the task in an owner's slot. A slot holds loop << 32 | task << 2 | stage, or 0 if there is no task to repeat.
enum Stage : uint64_t {
  COMPUTED,  // the owner alone computes it
  REPEATED,  // a stand-in computes it too
  WRITTEN,   // the owner writes
  TAKEN,     // the stand-in writes
  MASK = 3
};

class Turn {
 public:
  // The turn of a task that no other thread may do.
  Turn() = default;
  // The turn of the task in `slot`, for its owner or for its stand-in.
  Turn(std::atomic<uint64_t>* slot, uint64_t task, bool stands_in) : slot_(slot), task_(task), stands_in_(stands_in) {}

  // Whether the caller may write. The owner and the stand-in ask once each, after computing and before writing.
  bool mine();
  // Whether mine() has been true.
  bool taken() const { return taken_; }
  // Whether the other thread has the turn already, so that more computing is of no use.
  bool lost() const;

 private:
  std::atomic<uint64_t>* slot_ = nullptr;
  uint64_t task_ = 0;
  bool stands_in_ = false, taken_ = false;
};

// The moment at which a test lets a thread act as if it had lost its core, for at most a second.
enum Preempted : long {
  NOBODY,
  OWNER,     // the owner, before its turn, until a stand-in has the turn
  STAND_IN,  // the stand-in, before it computes, until the owner has the turn; the owner waits for it to begin
};

// Makes the calling stand-in wait before it computes the task in `slot`, if a test asked for STAND_IN.
void stand_in_waits(const std::atomic<uint64_t>& slot, uint64_t task);
