// The right to write what a task has computed, when two threads do the same task.
//
// The owner of a task may lose its core in the middle of it. Then a stand-in repeats the task, and whoever is first to
// take its turn writes. The other one may have read inputs that have changed since; its outputs are of no use, so it
// must find its way by data that does not change.
#pragma once
#include <atomic>
#include <cstdint>

// How far the task in an owner's slot is. A slot holds loop << 32 | task << 2 | stage; 0: nothing to stand in for.
enum Stage : uint64_t {
  COMPUTED,  // by the owner alone
  REPEATED,  // by a stand-in too
  WRITTEN,   // by the owner
  TAKEN,     // by the stand-in
  MASK = 3
};

class Turn {
 public:
  // Of a task that nobody else may do.
  Turn() = default;
  // Of the task in `slot`, for its owner or for the stand-in.
  Turn(std::atomic<uint64_t>* slot, uint64_t task, bool stands_in) : slot_(slot), task_(task), stands_in_(stands_in) {}

  // Whether the caller may write. Each of the two asks once, after it has computed and before it writes.
  bool mine();
  bool taken() const { return taken_; }
  // Whether the other thread has written already, so that computing on is of no use.
  bool lost() const;

 private:
  std::atomic<uint64_t>* slot_ = nullptr;
  uint64_t task_ = 0;
  bool stands_in_ = false, taken_ = false;
};

// Moments at which a test lets a thread act as if it had lost its core, for at most a second.
enum Preempted : long {
  NOBODY,
  OWNER,     // before its turn, until a stand-in has written
  STAND_IN,  // before it computes, until the owner, which waited for it to begin, has written
};

// In STAND_IN mode: called by a stand-in before it computes the task in `slot`.
void stand_in_waits(const std::atomic<uint64_t>& slot, uint64_t task);
