// Memory that grows and is used again. It begins at a cache line, so that no vector lies across two lines. Large memory
// lies in huge pages where the system has them, because a block of outputs touches as many small pages as it has rows.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  // Memory for `count` floats, of any content. It replaces the memory of the call before. Throws std::bad_alloc.
  float* take(size_t count) {
    if (count > count_) {
      std::free(memory_);
      count_ = 0;
      const size_t unit = count * sizeof(float) < HUGE_PAGE ? 64 : HUGE_PAGE;
      const size_t bytes = (count * sizeof(float) + unit - 1) / unit * unit;
      memory_ = (float*)std::aligned_alloc(unit, bytes);
      if (!memory_) throw std::bad_alloc();
#if defined(__linux__)
      if (unit == HUGE_PAGE) madvise(memory_, bytes, MADV_HUGEPAGE);
#endif
      count_ = count;
    }
    return memory_;
  }

 private:
  static constexpr size_t HUGE_PAGE = 2 << 20;

  float* memory_ = nullptr;
  size_t count_ = 0;
};

// `count` floats, rounded up to whole cache lines: the size of one buffer among several in one piece of memory.
inline long whole_lines(long count) { return (count + 15) / 16 * 16; }
