// Memory that is needed soon, fetched a few lines at a time beside other work.
#pragma once
#include <vector>

namespace {

class Fetches {
 public:
  void clear() { ranges_.clear(), next_ = 0; }

  void add(const void* at, long bytes) { ranges_.push_back({(const char*)at, (const char*)at + bytes}); }

  // Fetches so many lines into the second-level cache, in the order in which they were added.
  void fetch(long lines) {
    for (; lines > 0 && next_ < ranges_.size(); lines--) {
      Range& range = ranges_[next_];
      __builtin_prefetch(range.at, 0, 2);
      range.at += LINE;
      if (range.at >= range.end) next_++;
    }
  }

 private:
  static constexpr long LINE = 64;  // bytes
  struct Range {
    const char *at, *end;
  };
  std::vector<Range> ranges_;
  size_t next_ = 0;
};

}  // namespace
