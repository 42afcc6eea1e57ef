#include "pool.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "exports.h"
#include "shared_loop.h"

namespace {

// A thread's place in the program that it runs. A thread outside of a program, or alone in one, shares no loops.
struct Member {
  SharedLoop* shared = nullptr;
  int index = 0;
  uint64_t loop = 0;  // the last loop that the thread came to, counted from 1
};

thread_local Member member;

std::atomic<int> programs{0};        // that run now
std::atomic<int64_t> last_end_ms{0};  // of a program, by `now_ms`

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

class Pool {
 public:
  void run(int threads, void (*program)(void*), void* context) {
    std::unique_lock<std::mutex> one(running_, std::try_to_lock);
    if (!one) return program(context);
    threads_ = std::min(threads, MAX_THREADS);
    grow(threads_ - 1);
    program_ = program, context_ = context;
    loops_.begin(threads_);
    number_++;
    open_ = true;
    waiting_.wake_sleepers();
    run_as(0);
    open_ = false;
    waiting_.await([this] { return inside_ == 0; });
  }

  long taken_over() const { return loops_.taken_over(); }

 private:
  void run_as(int index) {
    member = {&loops_, index, 0};
    program_(context_);
    member = {};
  }

  void grow(int helpers) {
    for (; helpers_ < helpers; helpers_++) std::thread(&Pool::help, this, helpers_ + 1).detach();
  }

  void help(int index) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "kernels");
#endif
    long seen = 0;  // the last program that this thread entered, as no thread enters a program twice
    for (;;) {
      waiting_.await([this, &seen] { return open_ && number_ != seen; });
      // Enter first, then look again. A caller that has closed the program and sees nobody inside may change the
      // fields below; a thread that enters after that finds the program closed.
      inside_++;
      if (open_) {
        seen = number_;
        if (index < threads_) run_as(index);
      }
      if (--inside_ == 0) waiting_.wake_sleepers();
    }
  }

  std::mutex running_;
  Waiting waiting_;
  SharedLoop loops_{waiting_};
  std::atomic<bool> open_{false};
  std::atomic<long> number_{0};  // how many programs there were
  std::atomic<int> inside_{0}, threads_{0};
  void (*program_)(void*) = nullptr;
  void* context_ = nullptr;
  int helpers_ = 0;
};

// The pool is never destroyed, because helpers outlive static objects. A forked child has no helpers: it gets a new
// pool.
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

long tasks_taken_over() { return pool().taken_over(); }

Alone::Alone() : shared_(member.shared) { member.shared = nullptr; }
Alone::~Alone() { member.shared = shared_; }

bool in_program() { return member.shared != nullptr; }

void run_program(int threads, void (*program)(void*), void* context) {
  if (in_program()) return program(context);
  programs++;
  threads <= 1 ? program(context) : pool().run(threads, program, context);
  last_end_ms = now_ms();
  programs--;
}

long idle_ms() { return programs > 0 ? 0 : now_ms() - last_end_ms; }

void run_loop(long count, bool repeatable, Call call, void* context) {
  if (count <= 0) return;
  if (in_program()) return member.shared->share(member.index, ++member.loop, count, repeatable, call, context);
  for (long i = 0; i < count; i++) {
    Turn turn;
    call(context, i, turn);
  }
}
