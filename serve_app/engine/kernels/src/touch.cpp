// Memory that a thread of its own asks the system for, page by page.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "exports.h"
#include "pool.h"

namespace {

constexpr long PAGE = 4096, STRETCH = 2 << 20;  // bytes; a stretch is as long as a huge page
constexpr long REST_MS = 50;                    // without a program, before the kernels are taken to rest
constexpr std::chrono::milliseconds LOOK{20};   // between two looks whether they rest

struct Touching {
  std::vector<int64_t> begins, sizes;
  long at_once;
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

void give_way() {
#ifdef SCHED_IDLE
  sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
}

void run(Touching& touching) {
  long touched = 0;
  const long longest = *std::max_element(touching.sizes.begin(), touching.sizes.end());
  for (long at = 0; at < longest; at += STRETCH)
    for (size_t i = 0; i < touching.begins.size(); i++) {
      const long size = std::min(STRETCH, long(touching.sizes[i]) - at);
      if (size <= 0) continue;
      if (touched >= touching.at_once) {
        if (touched - touching.at_once < size) give_way();
        while (!touching.stops && !touching.hurries && idle_ms() < REST_MS) std::this_thread::sleep_for(LOOK);
      }
      if (touching.stops) return;
      char* const begin = reinterpret_cast<char*>(touching.begins[i]) + at;
      touch(begin, begin + size);
      touched += size;
    }
}

}  // namespace

void* start_touching(const int64_t* begins, const int64_t* sizes, long count, long at_once) {
  auto* touching = new Touching;
  touching->begins.assign(begins, begins + count);
  touching->sizes.assign(sizes, sizes + count);
  touching->at_once = at_once;
  touching->thread = std::thread(run, std::ref(*touching));
  return touching;
}

void end_touching(void* touching, int finish) {
  auto* ended = static_cast<Touching*>(touching);
  (finish ? ended->hurries : ended->stops) = true;
  ended->thread.join();
  delete ended;
}
