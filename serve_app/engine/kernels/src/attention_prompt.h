// Attention of many rows in pairs of bfloat16, as prompts have them. A task copies the keys and values of a part to panels
// once, for all of its rows. Then blocks of rows go over the tiles of keys. Where there are tile registers, they multiply
// one block while vector registers compute the softmax of another.
#pragma once
#include <optional>

#include "attention_fetches.h"
#include "attention_latent.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "attention_task.h"
#include "pool.h"
#include "scratch.h"

namespace {

constexpr long PROMPT_ROWS = 8 * ROWS;      // rows of one task at most
constexpr long BLOCK_ROWS = 2 * TILE_ROWS;  // rows of one block
constexpr long BLOCK_KEYS = 2 * LANES;      // keys of one product: two panels
constexpr long LINES_AHEAD = 4;             // cache lines that are fetched beside the softmax of one row

class PromptWorker : protected Places {
 public:
  PromptWorker(const Attention& a, const Cache& c)
      : Places(a, c),
        score_row_(tile + LANES),
        value_panel_((tile + 2) * LANES),
        tile_size_(tile * c.key_dim + c.value_pad / LANES * value_panel_) {
    static thread_local Scratch scratch;
    const long panels = PART / tile * tile_size_ / 2, query = PROMPT_ROWS * c.key_dim / 2;
    const long block = BLOCK_ROWS * (score_row_ + 2);
    const long latent = LANES * c.value_pad / 2;
    float* at = scratch.take(panels + query + latent + 2 * PART + 2 * block + (PROMPT_ROWS + ROWS) * state_row(c));
    panels_ = (bf16*)at, at += panels;
    query_ = (bf16*)at, at += query;
    latent_ = (bf16*)at, at += latent;
    key_scales_ = at, at += PART;
    value_scales_ = at, at += PART;
    for (Buffers& b : buffers_) {
      b.scores = at, at += BLOCK_ROWS * score_row_;
      b.base = at, at += BLOCK_ROWS;
      b.factor = at, at += BLOCK_ROWS;
    }
    all_ = state_at(at, PROMPT_ROWS), part_ = state_at(at + PROMPT_ROWS * state_row(c), ROWS);
  }

  // Runs a whole task. `next`: the task that this thread is likely to take next, or null.
  void run(const Task& t, const Task* next, Turn& turn) {
    if (!turn.mine()) return;
    load_query(t);
    for (long part = first_part(t); part <= last_part(t); part++) run_part(t, part, all_, next);
  }

  // Runs a task of one part -> s.
  void run(const Task& t, State s, const Task* next) {
    load_query(t);
    run_part(t, t.part, s, next);
  }

 protected:
  // What one block of rows needs while it goes over one tile of keys.
  struct Buffers {
    float* scores;  // [BLOCK_ROWS, tile], rows score_row_ apart; then weights, see SoftmaxTile
    float *base, *factor;
  };

  // One block of rows and one tile of keys: the keys that a row sees, and as many as whole products take.
  struct Item {
    long row, rows, key0, padded;
    const bf16* panels;
    bool masked;  // some row does not see all keys
  };

  // Adds the sums over the keys of one part to `all`, or sets `all` to them if a row sees no earlier part. Writes the
  // output of rows that see no later part, if the task has all parts.
  void run_part(const Task& t, long part, State all, const Task* next) {
    pack(t, part);
    later_.clear();
    if (t.part < 0 && part < last_part(t))
      fetch_later(t, part + 1);
    else if (next)
      fetch_later(*next, std::max(next->part, first_part(*next)));
    for (long row = 0; row < t.rows; row += ROWS) {
      const Task some{t.sequence, t.head, t.first + row, std::min(ROWS, t.rows - row), part};
      if (part < first_part(some) || part > last_part(some)) continue;
      const State mine = all.from(row, c.value_pad);
      const bool first = t.part >= 0 || part == first_part(some);
      outputs_.clear();
      if (t.part < 0 && part == last_part(some)) fetch_outputs(some);
      sum_part(some, part, query_ + row * c.key_dim, first ? mine : part_);
      if (!first) mine.merge(part_, some.rows, c.value_pad);
      if (t.part < 0 && part == last_part(some)) finish(some, mine);
    }
  }

  // Names the keys and values of a part of a task, which this thread is about to copy.
  void fetch_later(const Task& t, long part) {
    tiles_of(t, part, [&](long key0, long keys, long) {
      for (long k = 0; k < keys; k += c.block_size) {
        const long block = block_of(t, key0 + k) * c.kv_heads + t.head;
        later_.add((const char*)c.keys + block * c.key_bytes(), c.key_bytes());
        if (!c.latent()) later_.add((const char*)c.values + block * c.value_bytes(), c.value_bytes());
      }
    });
  }

  // Names the output of a task, which this thread is about to write.
  void fetch_outputs(const Task& t) {
    const long bytes = a.wide_out ? sizeof(float) : sizeof(bf16);
    for (long r = 0; r < t.rows; r++) outputs_.add((const char*)a.out + output(t, r) * bytes, c.value_dim * bytes);
  }

  long padded_to(long count, long unit) const { return (count + unit - 1) / unit * unit; }

  // The panels of the tile that begins at a key: of keys [tile/16][dim/2][16][2], then of values
  // [value_pad/16][tile/2][16][2], value_panel_ apart. With panels 4096 bytes apart, caches would hold few of them.
  bf16* panels_of(long key0) const { return panels_ + key0 % PART / tile * tile_size_; }

  // Copies the keys and values that a task reads of one part to panels.
  void pack(const Task& t, long part) {
    tiles_of(t, part, [&](long key0, long keys, long) { pack_tile(t, key0, keys, unseen(t, key0)); });
  }

  // The scales of the tile that begins at a key.
  Scales scales_of(long key0) const {
    return c.in_codes() ? Scales{key_scales_ + key0 % PART, value_scales_ + key0 % PART} : Scales{};
  }

  // Copies one tile of keys and values to its panels, and their scales. Values that no row sees become zeros.
  void pack_tile(const Task& t, long key0, long keys, long seen) {
    if (!c.in_codes()) return pack_tile<bf16>(t, key0, keys, seen);
    const long at = key0 % PART;
    load_scales(t, key0, keys, seen, padded_to(keys, BLOCK_KEYS), key_scales_ + at, value_scales_ + at);
    pack_tile<int8_t>(t, key0, keys, seen);
  }

  // The panels alone, of a cache of T.
  template <class T>
  void pack_tile(const Task& t, long key0, long keys, long seen) {
    const long size = c.block_size, dim = c.key_dim;
    bf16 *const to = panels_of(key0), *const values = to + tile * dim;
    const long end = padded_to(keys, BLOCK_KEYS);
    for (long k = 0; k < end; k += LANES) {
      const T* rows = nullptr;  // the values of sixteen positions
      if (k < keys) {
        const long block = block_of(t, key0 + k), offset = (key0 + k) % size;
        const T* const columns = c.key_block<T>(block, t.head) + offset * TOGETHER<T>;
        key_panel(columns, size, dim, to + k * dim);
        if (c.latent()) latent_values(columns, size, c.value_pad, (T*)latent_);
        rows = c.latent() ? (const T*)latent_ : c.value_block<T>(block, t.head) + offset * c.value_pad;
      } else {
        std::fill(to + k * dim, to + (k + LANES) * dim, bf16{});
      }
      for (long i = 0; i < LANES; i += 2) {
        const auto row = [&](long i) { return k + i < seen || k + i >= keys ? nullptr : rows + i * c.value_pad; };
        value_pair(row(i), row(i + 1), c.value_pad, values + (k + i) * LANES, value_panel_);
      }
    }
  }

  // Rounds the queries of a task, times the scale.
  void load_query(const Task& t) {
    queries(t, [&](long r, long d, F16 q, long) { store(query_ + r * c.key_dim + d, q); });
  }

  // Calls visit(item) for all blocks of rows and tiles of keys in which a row sees a key.
  template <class F>
  void items_of(const Task& t, long part, F&& visit) {
    tiles_of(t, part, [&](long key0, long keys, long) {
      for (long row = 0; row < t.rows; row += BLOCK_ROWS) {
        const long rows = std::min(BLOCK_ROWS, t.rows - row), low = positions_[row], high = positions_[row + rows - 1];
        const long seen = std::min(keys, high + 1 - key0);
        if (seen <= 0 || first_visible(low) >= key0 + keys) continue;
        const long padded = padded_to(seen, BLOCK_KEYS);
        visit(Item{row, rows, key0, padded, panels_of(key0), low + 1 < key0 + padded || first_visible(high) > key0});
      }
    });
  }

  static constexpr long MOST_ITEMS = PART / TILE * ROWS / BLOCK_ROWS;  // of ROWS rows and one part

  // The products of an item. The first ones add its weighted sums of 32 features each to `s`, and the others give its
  // scores of 32 keys each.
  long value_products() const { return padded_to(c.value_pad, BLOCK_KEYS) / BLOCK_KEYS; }
  long key_products(const Item& i) const { return i.padded / BLOCK_KEYS; }

  BlockProduct value_product(const Item& i, long nth, const Buffers& b, State s) const {
    const long feature = nth * 2 * LANES;
    BlockProduct product{};
    product.x = (const bf16*)b.scores, product.x_row = 2 * score_row_;
    product.w = i.panels + tile * c.key_dim + 2 * nth * value_panel_;
    product.v = feature + LANES < c.value_pad ? product.w + value_panel_ : nullptr;
    product.y = s.out + i.row * c.value_pad + feature, product.y_row = c.value_pad;
    product.rows = i.rows, product.steps = i.padded / BF16_INPUTS, product.add = true;
    return product;
  }

  BlockProduct key_product(const Item& i, long nth, const Buffers& b, const bf16* query) const {
    BlockProduct product{};
    product.x = query + i.row * c.key_dim, product.x_row = c.key_dim;
    product.w = i.panels + nth * BLOCK_KEYS * c.key_dim, product.v = product.w + LANES * c.key_dim;
    product.y = b.scores + nth * BLOCK_KEYS, product.y_row = score_row_;
    product.rows = i.rows, product.steps = c.key_dim / BF16_INPUTS, product.add = false;
    return product;
  }

  // The sums of at most ROWS rows over the keys of one part -> s. `query`: of those rows.
  void sum_part(const Task& t, long part, const bf16* query, State s) {
    for (long r = 0; r < t.rows; r++) positions_[r] = position(t, r);
    s.reset(padded_to(t.rows, LANES), c.value_pad);
    Item items[MOST_ITEMS];
    long count = 0;
    items_of(t, part, [&](const Item& item) { items[count++] = item; });
    sum_items(items, count, query, s);
  }

  // Adds the sums of items, at least one, to `s`. `query`: of row 0 of the items.
  void sum_items(const Item* items, long count, const bf16* query, State s) {
    const bool tiles = c.product == TILES;
    std::optional<TileScope> scope;
    if (tiles) scope.emplace(TILE_ROWS);
    for (long nth = 0; nth < key_products(items[0]); nth++)
      key_product(items[0], nth, buffers_[0], query).multiply(tiles);
    for (long n = 0; n < count; n++) {
      const Item& item = items[n];
      const Item *const before = n > 0 ? &item - 1 : nullptr, *const after = n + 1 < count ? &item + 1 : nullptr;
      const Buffers &mine = buffers_[n % 2], &other = buffers_[(n + 1) % 2];
      const SoftmaxTile<Weights::HALVES> softmax{mine.scores,          score_row_, item.padded,
                                                 scales_of(item.key0), mine.base,  mine.factor};
      const State sums = s.from(item.row, c.value_pad);
      raise(item, softmax, sums);
      // Between the rows come products: of the item before, which has its weights, and then of the one after.
      const long values = before ? value_products() : 0, products = values + (after ? key_products(*after) : 0);
      long done = 0;
      for (long row = 0; row < item.rows; row++) {
        for (; done * item.rows < products * (row + 1); done++)
          if (done < values)
            value_product(*before, done, other, s).multiply(tiles);
          else
            key_product(*after, done - values, other, query).multiply(tiles);
        softmax.weigh(row, sums);
        outputs_.fetch(2 * LINES_AHEAD);
        later_.fetch(LINES_AHEAD);
      }
      softmax.shrink(item.rows, sums, c.value_pad);
    }
    const Item& last = items[count - 1];
    for (long nth = 0; nth < value_products(); nth++)
      value_product(last, nth, buffers_[(count - 1) % 2], s).multiply(tiles);
  }

  // Scales, caps and masks the scores of an item, and raises the tops of its rows.
  void raise(const Item& i, const SoftmaxTile<Weights::HALVES>& softmax, State s) {
    alignas(64) float tops[BLOCK_ROWS];
    std::fill(tops, tops + BLOCK_ROWS, -INF);
    for (long r = 0; r < i.rows; r++) {
      const long at = positions_[i.row + r];
      softmax.finish(r, a.softcap);
      const Seen seen = i.masked ? Seen{first_visible(at) - i.key0, at + 1 - i.key0} : Seen{0, i.padded};
      tops[r] = softmax.largest_above(s.top[r] + SLACK, r, seen);
    }
    softmax.raise(i.rows, tops, s);
  }

  const long score_row_, value_panel_, tile_size_;
  bf16 *panels_, *query_;
  bf16* latent_;                       // [16, value_pad]: latent values of sixteen keys
  float *key_scales_, *value_scales_;  // [PART]: of the keys and values in panels, if they are codes
  Buffers buffers_[2];
  State all_, part_;
  Fetches outputs_, later_;
  long positions_[ROWS];  // of each row whose sums are computed, in its sequence
};

}  // namespace
