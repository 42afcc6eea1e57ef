// Memory that a thread of its own asks the system for, page by page.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "exports.h"

namespace {

constexpr long PAGE = 4096, STRETCH = 2 << 20;  // bytes; a stretch is as long as a huge page

struct Touching {
  std::vector<int64_t> begins, sizes;
  std::atomic<bool> stops{false};
  std::thread thread;
};

// Writes to each page of [begin, end) without a change: what others write at the same time stays.
void touch(char* begin, char* end) {
  for (char* page = begin; page < end; page += PAGE) {
    char value = __atomic_load_n(page, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(page, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

void run(Touching& touching, bool gives_way) {
#ifdef SCHED_IDLE
  sched_param none{};
  if (gives_way) pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
  const long longest = *std::max_element(touching.sizes.begin(), touching.sizes.end());
  for (long at = 0; at < longest; at += STRETCH)
    for (size_t i = 0; i < touching.begins.size(); i++) {
      if (touching.stops) return;
      char* begin = reinterpret_cast<char*>(touching.begins[i]);
      if (at < touching.sizes[i]) touch(begin + at, begin + std::min(at + STRETCH, long(touching.sizes[i])));
    }
}

}  // namespace

void* start_touching(const int64_t* begins, const int64_t* sizes, long count, int gives_way) {
  auto* touching = new Touching;
  touching->begins.assign(begins, begins + count);
  touching->sizes.assign(sizes, sizes + count);
  touching->thread = std::thread(run, std::ref(*touching), gives_way);
  return touching;
}

void end_touching(void* touching, int finish) {
  auto* ended = static_cast<Touching*>(touching);
  if (!finish) ended->stops = true;
  ended->thread.join();
  delete ended;
}
