// Memory that grows and is used again. Aligned to cache lines, so that no vector straddles two of them.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  // Room for `count` floats, of any content; what was handed out before is gone.
  float* take(size_t count) {
    if (count > count_) {
      std::free(memory_);
      count_ = 0;
      memory_ = (float*)std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
      if (!memory_) throw std::bad_alloc();
      count_ = count;
    }
    return memory_;
  }

 private:
  float* memory_ = nullptr;
  size_t count_ = 0;
};

// Floats up to the next cache line, for buffers that share one piece of memory.
inline long whole_lines(long count) { return (count + 15) / 16 * 16; }
