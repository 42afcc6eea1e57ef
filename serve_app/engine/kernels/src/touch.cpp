// Memory that a thread of its own asks the system for, page by page.
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "exports.h"
#include "pool.h"

namespace {

using Moments = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr long PAGE = 4096, STRETCH = 256 << 10, MIB = 1 << 20;  // bytes
constexpr long REST_MS = 50;                    // without a program, before the kernels are taken to rest
constexpr std::chrono::milliseconds LOOK{20};   // between two looks whether they rest
constexpr long SHARE = 50;                      // while they do not, the thread touches for this part of the time
constexpr int64_t SMOOTHED = 8;                 // a new measurement has this part of the figure's weight

// What the thread tells, in memory of the caller, who reads it at any time.
struct Progress {
  int64_t* told;

  void touched(int64_t bytes) { __atomic_store_n(&told[0], bytes, __ATOMIC_RELEASE); }

  void took(int64_t ns, int64_t bytes) {
    const int64_t ns_per_mib = ns * MIB / bytes, known = told[1];
    __atomic_store_n(&told[1], known ? known + (ns_per_mib - known) / SMOOTHED : ns_per_mib, __ATOMIC_RELAXED);
  }
};

struct Touching {
  std::vector<int64_t> begins, sizes;
  long at_once;
  long at_once_ns;
  Progress progress;
  std::atomic<bool> stops{false}, hurries{false};
  std::thread thread;
};

// Writes to each page of [begin, end) without a change: what others write at the same time stays.
void touch(char* begin, char* end) {
  for (char* page = begin; page < end; page += PAGE) {
    char value = __atomic_load_n(page, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(page, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

// Of the calling thread. While others have its core, it has no time.
int64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// How often the system gave memory to the calling thread. Where the system does not tell, always once more.
long times_given() {
#ifdef RUSAGE_THREAD
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
#else
  static thread_local long times = 0;
  return ++times;
#endif
}

void give_way() {
#ifdef SCHED_IDLE
  sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
}

// Waits until the kernels rest, or until the thread may touch beside them.
void wait_for_rest(const Touching& touching, Moments::time_point turn) {
  while (!touching.stops && !touching.hurries && idle_ms() < REST_MS) {
    const auto left = turn - Moments::now();
    if (left <= nanoseconds::zero()) return;
    std::this_thread::sleep_for(std::min<nanoseconds>(left, LOOK));
  }
}

void run(Touching& touching) {
  long touched = 0;
  int64_t spent_ns = 0;
  bool gives_way = false;
  Moments::time_point turn{};
  const long longest = *std::max_element(touching.sizes.begin(), touching.sizes.end());
  for (long at = 0; at < longest; at += STRETCH) {
    int64_t round_ns = 0, round_bytes = 0;
    const long given = times_given();
    for (size_t i = 0; i < touching.begins.size(); i++) {
      const long size = std::min(STRETCH, long(touching.sizes[i]) - at);
      if (size <= 0) continue;
      if (touched >= touching.at_once || spent_ns >= touching.at_once_ns) {
        if (!gives_way) give_way();
        gives_way = true;
        wait_for_rest(touching, turn);
      }
      if (touching.stops) return;
      char* const begin = reinterpret_cast<char*>(touching.begins[i]) + at;
      const int64_t before = thread_ns();
      touch(begin, begin + size);
      const int64_t ns = thread_ns() - before;
      turn = Moments::now() + nanoseconds(ns * SHARE);
      touched += size, spent_ns += ns, round_bytes += size, round_ns += ns;
    }
    if (times_given() != given) touching.progress.took(round_ns, round_bytes);
    touching.progress.touched(std::min(at + STRETCH, longest));
  }
}

}  // namespace

void* start_touching(const int64_t* begins, const int64_t* sizes, long count, long at_once, long at_once_ns,
                     int64_t* progress) {
  auto* touching = new Touching;
  touching->begins.assign(begins, begins + count);
  touching->sizes.assign(sizes, sizes + count);
  touching->at_once = at_once, touching->at_once_ns = at_once_ns;
  touching->progress.told = progress;
  touching->thread = std::thread(run, std::ref(*touching));
  return touching;
}

void end_touching(void* touching, int finish) {
  auto* ended = static_cast<Touching*>(touching);
  (finish ? ended->hurries : ended->stops) = true;
  ended->thread.join();
  delete ended;
}
