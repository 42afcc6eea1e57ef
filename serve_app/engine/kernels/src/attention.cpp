// Paged causal attention, for decodes and chunks of prefills: grouped heads, sliding window, softcap and sinks.
#include "attention.h"

#include "attention_plan.h"
#include "exports.h"

namespace {

// Floats of the state of one part of a task.
long part_room(const Cache& c) { return whole_lines(ROWS * state_row(c)); }

bool in_panels(const Places& p, const Task& t) { return p.c.in_pairs() && !p.few(t); }

}  // namespace

long attention_room(const Attention& a, const Cache& c, int threads) {
  const Plan plan(a, c, threads);
  return plan.shared ? plan.shared->room() : plan.parts.size() * part_room(c);
}

void attend_all(const Attention& a, const Cache& c, float* room, int threads) {
  const Plan plan(a, c, threads);
  const std::vector<Task>&tasks = plan.tasks, &parts = plan.parts;
  const Places places(a, c);
  // Threads take turns, so the thread of number i is likely to take number i + threads next.
  const auto after = [threads](const auto& all, size_t i) {
    return i + threads < all.size() ? &all[i + threads] : nullptr;
  };
  if (plan.shared) {
    const SharedStates states{*plan.shared, c, room};
    parallel(plan.shared->runs().size() * c.kv_heads, threads,
             [&](long i) { SharedWorker(a, c).run(states, i / c.kv_heads, i % c.kv_heads); });
    const std::vector<TaskGroup> groups = groups_of(tasks, places, threads);
    return parallel(groups.size(), threads, [&](long i, Turn& turn) {
      const TaskGroup& group = groups[i];
      const TaskGroup* const later = after(groups, i);
      const Task* const next = later ? later->first : nullptr;
      if (in_panels(places, *group.first))
        PromptWorker(a, c).run(*group.first, next, turn);
      else
        Worker(a, c, &states).run(group, next, turn);
    });
  }
  const auto state_of = [&](size_t i) { return state_at(room + i * part_room(c), ROWS); };
  parallel(parts.size(), threads, [&](long i) {
    if (in_panels(places, parts[i])) return PromptWorker(a, c).run(parts[i], state_of(i), after(parts, i));
    Worker worker(a, c);
    worker.load_query(parts[i]);
    worker.run_part(parts[i], parts[i].part, state_of(i), after(parts, i));
  });
  parallel(tasks.size(), threads, [&](long i) {
    for (size_t j = plan.begins[i] + 1; j < plan.begins[i + 1]; j++)
      state_of(plan.begins[i]).merge(state_of(j), tasks[i].rows, c.value_pad);
    places.finish(tasks[i], state_of(plan.begins[i]));
  });
}

void attend(const Attention* attention, const Cache* cache, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may attend at once
  float* const room = scratch.take(attention_room(*attention, *cache, threads));
  together(threads, [&] { attend_all(*attention, *cache, room, threads); });
}
