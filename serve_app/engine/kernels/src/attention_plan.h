// The division of attention into tasks.
#pragma once
#include <optional>
#include <vector>

#include "attention_shared.h"
#include "attention_worker.h"

namespace {

constexpr long TASKS_A_THREAD = 4;  // so many tasks let all threads end at nearly the same time
constexpr long GROUPS_A_THREAD = 8;  // the same of groups of tasks

// The work of a task: its rows times the keys that the last one sees.
inline long work(const Places& p, const Task& t) {
  const long last = p.position(t, t.rows - 1);
  return t.rows * (last - p.first_visible(last));
}

// The tasks of one call. Where tasks are few and contexts long, every part of a task is a task of its own, in `parts`.
// The parts of a task are merged afterwards, in the order in which one thread would sum them. Else `parts` is empty.
// Keys that decodes share come before the tasks, if tasks are enough for all threads without parts.
struct Plan {
  std::vector<Task> tasks, parts;
  std::vector<size_t> begins;  // [tasks + 1]: task i has the parts begins[i] .. begins[i + 1] - 1
  std::optional<SharedKeys> shared;

  Plan(const Attention& a, const Cache& c, int threads) {
    const Places places(a, c);
    const size_t enough = threads > 1 ? TASKS_A_THREAD * threads : 0;
    tasks.reserve(a.sequences * c.kv_heads);
    // A task copies its keys and values, so it should have many rows. In pairs it may have more than its sums.
    for (long most = c.in_pairs() ? PROMPT_ROWS : ROWS;; most = std::max(ROWS, most / 2)) {
      divide(places, most);
      if (tasks.size() >= enough || most == ROWS) break;
    }
    const bool long_ones = std::any_of(a.length, a.length + a.sequences, [](long length) { return length > PART; });
    if (!long_ones || tasks.size() >= enough) {
      shared.emplace(places);
      return;
    }
    for (const Task& t : tasks) {
      begins.push_back(parts.size());
      for (long part = places.first_part(t); part <= places.last_part(t); part++) {
        parts.push_back(t);
        parts.back().part = part;
      }
    }
    begins.push_back(parts.size());
  }

 private:
  // Makes tasks of at most `most` rows. The ones with most work come first, so that none of them is the last to end.
  void divide(const Places& p, long most) {
    bool prompts = false;
    tasks.clear();
    for (long s = 0; s < p.a.sequences; s++) {
      const long rows = (p.a.start[s + 1] - p.a.start[s]) * p.group;
      prompts |= rows > FEW;
      for (long h = 0; h < p.c.kv_heads; h++)
        for (long first = 0; first < rows; first += most)
          tasks.push_back({s, h, first, std::min(most, rows - first), -1});
    }
    if (!prompts) return;
    std::stable_sort(tasks.begin(), tasks.end(), [&](const Task& x, const Task& y) { return work(p, x) > work(p, y); });
  }
};

// The tasks in groups: one of many rows alone, and neighbours of few rows up to a share of the work. These are so short that
// taking each apart would cost a quarter of the time where cores share no cache.
inline std::vector<TaskGroup> groups_of(const std::vector<Task>& tasks, const Places& p, int threads) {
  long all = 0, left = 0;  // of the work; left: what the last group may still take
  for (const Task& t : tasks) all += work(p, t);
  const long share = all / (GROUPS_A_THREAD * threads);
  std::vector<TaskGroup> groups;
  for (const Task& t : tasks) {
    const long some = work(p, t);
    if (groups.empty() || left < some || p.c.latent() || !groups.back().takes(t)) {
      groups.push_back({&t, 0, 0});
      left = share;
    }
    left -= some;
    groups.back().count++, groups.back().rows += t.rows;
  }
  return groups;
}

}  // namespace
