// Memory that grows and is used again. It begins at a cache line, so that no vector lies across two lines.
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

  // Memory for `count` floats, of any content. It replaces the memory of the call before. Throws std::bad_alloc.
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

// `count` floats, rounded up to whole cache lines: the size of one buffer among several in one piece of memory.
inline long whole_lines(long count) { return (count + 15) / 16 * 16; }
