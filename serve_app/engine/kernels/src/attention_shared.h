// Attention of decodes over keys that several sequences share, as those with one system prompt do.
//
// Tiles of keys that are the same blocks of the cache are copied to panels once, for the rows of all sequences that have
// them. Then each sequence goes on with the keys of its own. A row's tiles come in the order in which the sequence alone
// would read them, so its result is the same, bit for bit.
#pragma once
#include <numeric>
#include <vector>

#include "attention_prompt.h"

namespace {

// Fewer rows that share a tile read it in place, each sequence for itself, in less time than a copy takes.
constexpr long SHARED_ROWS = 8;

// Which decodes share which tiles of keys.
class SharedKeys {
 public:
  // Some neighbours in the order of sequences, and the tiles of one part that they share: first_tile .. end_tile - 1.
  struct Segment {
    long first, count, first_tile, end_tile;
  };
  // The segments of one part that begin with the first tile of the part and with common rows. Earlier ones have all
  // sequences of later ones. The rows of a sequence lie together: row = place in the run * group + head.
  struct Run {
    long part, first, count;
    size_t begin, end;  // segments
    size_t room;        // floats before the states of this run: one for each head of keys
  };
  // What a sequence finds of one part: the state of its rows in a run, and the first key that is not in it
  // (0: nothing).
  struct Found {
    long run = 0, row = 0, end = 0;
  };

  explicit SharedKeys(const Places& p) : group_(p.group), tile_(p.tile), in_tile_(p.tile / p.c.block_size) {
    if (!p.c.in_pairs() || p.a.window || p.group > FEW || p.c.latent()) return;
    sort(p.a);
    if (longest_ == 0) return;
    const long parts = (longest_ + tiles_of_part() - 1) / tiles_of_part();
    found_.resize(parts * p.a.sequences);
    sequences_ = p.a.sequences;
    for (long part = 0; part < parts; part++) divide(part, p.c);
  }

  const std::vector<Run>& runs() const { return runs_; }
  const Segment& segment(size_t i) const { return segments_[i]; }
  long sequence(long place) const { return order_[place]; }
  size_t room() const { return room_; }
  long group() const { return group_; }

  Found found(long sequence, long part) const {
    const size_t at = part * sequences_ + sequence;
    return at < found_.size() ? found_[at] : Found{};
  }

  // Rows of the states of a run.
  long rows(long run) const { return padded_rows(runs_[run]); }

 private:
  long tiles_of_part() const { return PART / tile_; }
  long padded_rows(const Run& r) const { return (r.count * group_ + LANES - 1) / LANES * LANES; }

  // Puts decodes with the same blocks next to each other, and counts the tiles that neighbours share. A decode sees all
  // keys of its sequence, and no tile counts that is not full.
  void sort(const Attention& a) {
    const auto blocks = [&](long s) { return a.tables + s * a.table_width; };
    const auto end = [&](long s) { return blocks(s) + a.length[s] / tile_ * in_tile_; };
    for (long s = 0; s < a.sequences; s++)
      if (a.start[s + 1] - a.start[s] == 1) order_.push_back(s);
    std::sort(order_.begin(), order_.end(), [&](long s, long t) {
      return std::lexicographical_compare(blocks(s), end(s), blocks(t), end(t));
    });
    for (size_t i = 0; i + 1 < order_.size(); i++) {
      const long s = order_[i], t = order_[i + 1];
      common_.push_back((std::mismatch(blocks(s), end(s), blocks(t), end(t)).first - blocks(s)) / in_tile_);
      longest_ = std::max(longest_, common_.back());
    }
  }

  // Calls visit(first, count) for the neighbours, out of `count` from `first` on, that share a tile and have enough rows.
  template <class F>
  void neighbours(long first, long count, long tile, F&& visit) const {
    for (long i = first, end = first + count; i < end;) {
      long j = i + 1;
      while (j < end && common_[j - 1] > tile) j++;
      if (j - i > 1 && (j - i) * group_ >= SHARED_ROWS) visit(i, j - i);
      i = j;
    }
  }

  void divide(long part, const Cache& c) {
    const long first_tile = part * tiles_of_part(), most = ROWS / group_;
    neighbours(0, order_.size(), first_tile, [&](long first, long count) {
      for (long i = first; i < first + count; i += most) {
        Run run{part, i, std::min(most, first + count - i), segments_.size(), 0, room_};
        if (run.count < 2) continue;
        for (long k = 0; k < run.count; k++)
          found_[part * sequences_ + order_[i + k]] = {(long)runs_.size(), k * group_, 0};
        grow(part, run.first, run.count, first_tile);
        run.end = segments_.size();
        room_ += whole_lines(c.kv_heads * padded_rows(run) * state_row(c));
        runs_.push_back(run);
      }
    });
  }

  // The segments of neighbours that share a tile, from this tile on.
  void grow(long part, long first, long count, long tile) {
    const long shared = *std::min_element(&common_[first], &common_[first] + count - 1);
    const long whole = (part + 1) * tiles_of_part(), end = std::min(shared, whole);
    segments_.push_back({first, count, tile, end});
    for (long i = first; i < first + count; i++) found_[part * sequences_ + order_[i]].end = end * tile_;
    if (end < whole) neighbours(first, count, end, [&](long i, long n) { grow(part, i, n, end); });
  }

  const long group_, tile_, in_tile_;  // in_tile_: blocks
  long longest_ = 0, sequences_ = 0;
  size_t room_ = 0;
  std::vector<long> order_, common_;  // common_[i]: full tiles that order_[i] and order_[i + 1] share
  std::vector<Run> runs_;
  std::vector<Segment> segments_;
  std::vector<Found> found_;  // [parts, sequences]
};

// The states of all runs, in the memory at `room`.
struct SharedStates {
  const SharedKeys& keys;
  const Cache& c;
  float* room;

  State of(long run, long head) const {
    const long rows = keys.rows(run);
    return state_at(room + keys.runs()[run].room + head * rows * state_row(c), rows);
  }

  // The first key of a part that a task does not share; 0: it shares none.
  long end(const Task& t, long part) const { return keys.found(t.sequence, part).end; }

  // Sets `s` to the state of a task after the keys of a part that it shares, of which there must be some.
  void take(const Task& t, long part, State s) const {
    const SharedKeys::Found found = keys.found(t.sequence, part);
    s.copy(of(found.run, t.head).from(found.row, c.value_pad), t.rows, c.value_pad);
  }
};

// Computes the states of one run and one head of keys.
class SharedWorker : PromptWorker {
 public:
  using PromptWorker::PromptWorker;

  void run(const SharedStates& states, long nth, long head) {
    const SharedKeys& shared = states.keys;
    const SharedKeys::Run& run = shared.runs()[nth];
    const State all = states.of(nth, head);
    const long group = shared.group(), width = c.value_pad;
    for (long i = 0; i < run.count; i++)
      queries({shared.sequence(run.first + i), head, 0, group, -1},
              [&](long r, long d, F16 q, long) { store(query_ + (i * group + r) * c.key_dim + d, q); });
    all.reset(run.count * group, width);
    for (size_t n = run.begin; n < run.end; n++) {
      const SharedKeys::Segment& segment = shared.segment(n);
      const Task some{shared.sequence(segment.first), head, 0, group, run.part};
      const long row = (segment.first - run.first) * group, rows = segment.count * group;
      Item items[MOST_ITEMS];
      long count = 0;
      for (long key0 = segment.first_tile * tile; key0 < segment.end_tile * tile; key0 += tile) {
        pack_tile(some, key0, tile, 0);
        for (long r = 0; r < rows; r += BLOCK_ROWS)
          items[count++] = {r, std::min(BLOCK_ROWS, rows - r), key0, tile, panels_of(key0), false};
      }
      part_.copy(all.from(row, width), rows, width);
      sum_items(items, count, query_ + row * c.key_dim, part_);
      all.from(row, width).copy(part_, rows, width);
    }
  }
};

}  // namespace
