// The division of attention into tasks.
#pragma once
#include <vector>

#include "attention_worker.h"

namespace {

// The tasks of one call. Where tasks are few and contexts long, every part of a task is a task of its own, in `parts`.
// The parts of a task are merged afterwards, in the order in which one thread would sum them. Else `parts` is empty.
struct Plan {
  std::vector<Task> tasks, parts;
  std::vector<size_t> begins;  // [tasks + 1]: task i has the parts begins[i] .. begins[i + 1] - 1

  Plan(const Attention& a, const Cache& c, int threads) {
    const long group = a.heads / c.kv_heads;
    bool long_ones = false;
    tasks.reserve(a.sequences * c.kv_heads);
    for (long s = 0; s < a.sequences; s++) {
      const long rows = (a.start[s + 1] - a.start[s]) * group;
      long_ones |= a.length[s] > PART;
      for (long h = 0; h < c.kv_heads; h++)
        for (long first = 0; first < rows; first += ROWS)
          tasks.push_back({s, h, first, std::min(ROWS, rows - first), -1});
    }
    if (!long_ones || (long)tasks.size() >= 4 * threads) return;
    const Worker ruler(a, c);
    for (const Task& t : tasks) {
      begins.push_back(parts.size());
      const long from = ruler.first_visible(ruler.position(t, 0)) / PART, to = ruler.position(t, t.rows - 1) / PART;
      for (long part = from; part <= to; part++) {
        parts.push_back(t);
        parts.back().part = part;
      }
    }
    begins.push_back(parts.size());
  }
};

}  // namespace
