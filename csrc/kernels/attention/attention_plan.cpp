// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_plan.h"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace anvil::kernels {
namespace {

// Parts per worker that a batch is cut into, where ranges of keys can be cut: enough for workers to
// finish together, few enough for merging not to count.
constexpr int64_t kPartsPerWorker = 8;
// Ranges of keys are cut at multiples of these, and not shorter than so many of them.
constexpr int64_t kCutKeys = 64;
constexpr int64_t kLeastKeys = 128;
// Costs are in cycles, roughly. What an item costs besides its keys:
constexpr int64_t kItemCost = 400;
// What is worth waking another worker for:
constexpr int64_t kWorthAWorker = 30000;
// What is not cut further: sums of another worker's parts come slowly.
constexpr int64_t kLeastPart = 40000;
// Items of about the same cost are one class: four classes an octave.
constexpr int kClasses = 4 * 48;

int cost_class(int64_t cost) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(cost, 4));
  const int octave = std::bit_width(value) - 1;
  const auto quarter = static_cast<int>(value >> (octave - 2) & 3);
  return std::min(kClasses - 1, 4 * octave + quarter);
}

struct Tile {
  int64_t row, rows, key_begin, key_end;
  bool few;
  int64_t cost;  // for one KV head

  int64_t keys() const { return key_end - key_begin; }
};

class Planner {
 public:
  Planner(const AttentionArgs& args, const AttentionShape& shape)
      : args_(args), shape_(shape), plan_(args, shape) {}

  int64_t fill() {
    int64_t total = 0;
    for (int64_t request = 0; request < args_.num_requests; ++request) {
      for_tiles(request, [&](const Tile& tile) { total += tile.cost * args_.num_kv_heads; });
    }
    // What one worker computes need not be cut.
    const int64_t parts =
        std::clamp<int64_t>(total / (args_.workers * kLeastPart), 1, kPartsPerWorker);
    share_ = args_.workers == 1 ? INT64_MAX / 2 : total / (args_.workers * parts) + 1;
    for (int64_t request = 0; request < args_.num_requests; ++request) {
      for_tiles(request, [&](const Tile& tile) { add(request, tile); });
    }
    *plan_.num_items = num_items_;
    *plan_.next = 0;
    sort();
    return std::clamp<int64_t>(total / kWorthAWorker, 1, args_.workers);
  }

 private:
  template <typename Body>
  void for_tiles(int64_t request, const Body& body) const {
    const int64_t group = args_.num_heads / args_.num_kv_heads;
    const int64_t query_len = args_.query_start_loc[request + 1] - args_.query_start_loc[request];
    const int64_t length = args_.seq_lens[request], rows = query_len * group;
    const bool few = rows <= shape_.few_rows;
    const bool causal =
        args_.causal_per_request == nullptr ? args_.causal : args_.causal_per_request[request];
    for (int64_t row = 0; row < rows; row += shape_.tile_rows) {
      Tile tile = {row, std::min(shape_.tile_rows, rows - row), 0, length, few, 0};
      const int64_t first = length - query_len + row / group;
      const int64_t last = length - query_len + (row + tile.rows - 1) / group;
      if (causal) tile.key_end = last + 1;
      if (args_.window > 0) {
        tile.key_begin = std::max<int64_t>(0, first - (args_.window - 1));
        if (!causal) tile.key_end = last + args_.window;
      }
      tile.key_end = std::clamp<int64_t>(tile.key_end, 0, length);
      tile.key_begin = std::min(tile.key_begin, tile.key_end);
      tile.cost = kItemCost + tile.keys() * cost_of_key(tile.rows, few);
      body(tile);
    }
  }

  int64_t cost_of_key(int64_t rows, bool few) const {
    const int64_t columns = args_.head_size + args_.value_head_size;
    // A few rows cost little beside the bytes of a key, which must arrive; tiles compute.
    return few ? columns * (5 + rows) / 32 + 1 : columns * ((rows + 15) / 16) * 5 / 8 + 1;
  }

  // The items of a tile, for all KV heads.
  void add(int64_t request, const Tile& tile) {
    const int64_t most_heads = tile.few ? std::max<int64_t>(1, shape_.head_rows / tile.rows) : 1;
    int64_t heads = std::min(most_heads, args_.num_kv_heads);
    // What cannot be cut into enough ranges of keys is cut into heads as well.
    const int64_t pieces = tile.cost * heads / share_ + 1;
    const int64_t ranges = std::clamp<int64_t>(tile.keys() / kLeastKeys, 1, pieces);
    heads = std::max<int64_t>(1, heads * ranges / pieces);
    for (int64_t head = 0; head < args_.num_kv_heads; head += heads) {
      add(request, tile, head, std::min(heads, args_.num_kv_heads - head));
    }
  }

  void add(int64_t request, const Tile& tile, int64_t head, int64_t heads) {
    const AttentionItem whole = {static_cast<int32_t>(request),
                                 static_cast<int32_t>(head),
                                 static_cast<int32_t>(heads),
                                 static_cast<int32_t>(tile.row),
                                 static_cast<int32_t>(tile.rows),
                                 static_cast<int32_t>(tile.key_begin),
                                 static_cast<int32_t>(tile.key_end),
                                 -1,
                                 0,
                                 tile.few};
    const int64_t cost = tile.cost * heads, step = step_of(tile, cost);
    if (step == 0) return emit(whole, cost);
    AttentionMerge& merge = plan_.merges[num_merges_];
    merge.first_part = static_cast<int32_t>(num_parts_);
    for (int64_t key = tile.key_begin; key < tile.key_end;) {
      AttentionItem item = whole;
      item.key_begin = static_cast<int32_t>(key);
      key = std::min(tile.key_end, key / step * step + step);
      item.key_end = static_cast<int32_t>(key);
      item.merge = static_cast<int32_t>(num_merges_);
      item.part = static_cast<int32_t>(num_parts_++);
      emit(item, cost * (item.key_end - item.key_begin) / tile.keys());
    }
    merge.parts = static_cast<int32_t>(num_parts_) - merge.first_part;
    merge.missing = merge.parts;
    ++num_merges_;
  }

  // At multiples of how many keys a tile's range is cut; 0: it is not.
  int64_t step_of(const Tile& tile, int64_t cost) const {
    if (cost <= share_ || tile.keys() < 2 * kLeastKeys) return 0;
    int64_t step = args_.fixed_split;
    if (step == 0) {
      const int64_t pieces = std::min((cost + share_ - 1) / share_, tile.keys() / kLeastKeys);
      step = (tile.keys() / pieces + kCutKeys - 1) / kCutKeys * kCutKeys;
    }
    const int64_t parts = (tile.key_end - 1) / step - tile.key_begin / step + 1;
    return parts > 1 && num_parts_ + parts <= plan_.max_parts ? step : 0;
  }

  void emit(const AttentionItem& item, int64_t cost) {
    plan_.items[num_items_] = item;
    plan_.class_of[num_items_] = cost_class(cost);
    ++counts_[plan_.class_of[num_items_]];
    ++num_items_;
  }

  // Longest first, and items of one class in the order in which they were added.
  void sort() {
    int64_t start = 0;
    for (int c = kClasses - 1; c >= 0; --c) {
      const int64_t count = counts_[c];
      counts_[c] = start;
      start += count;
    }
    for (int64_t i = 0; i < num_items_; ++i) {
      plan_.order[counts_[plan_.class_of[i]]++] = static_cast<int32_t>(i);
    }
  }

  const AttentionArgs& args_;
  const AttentionShape& shape_;
  AttentionPlan plan_;
  int64_t share_ = 0, num_items_ = 0, num_merges_ = 0, num_parts_ = 0;
  int64_t counts_[kClasses] = {};
};

}  // namespace

AttentionPlan::AttentionPlan(const AttentionArgs& args, const AttentionShape& shape) {
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t tiles = args.num_tokens * group / shape.tile_rows + args.num_requests;
  max_parts = args.workers == 1 ? 0 : 2 * kPartsPerWorker * args.workers;
  max_items = tiles * args.num_kv_heads + max_parts;
  const int64_t part_rows = std::max(shape.tile_rows, shape.head_rows);
  part_floats = std::min(part_rows, args.num_tokens * args.num_heads) * (shape.value_columns + 2);
  part_floats = (part_floats + 15) / 16 * 16;  // workers write to lines of their own
  bytes = 0;
  const auto place = [&](auto*& pointer, int64_t count) {
    using Type = std::remove_reference_t<decltype(*pointer)>;
    // As a number: there is no memory yet when its size is asked for.
    pointer = reinterpret_cast<Type*>(reinterpret_cast<uintptr_t>(args.workspace) +
                                      static_cast<uintptr_t>(bytes));
    bytes += (count * static_cast<int64_t>(sizeof(Type)) + 63) / 64 * 64;
  };
  place(num_items, 1);
  place(next, 1);  // in a line of its own: all workers write to it
  place(items, max_items);
  place(order, max_items);
  place(class_of, max_items);
  place(merges, max_parts);
  place(part_sums, max_parts * part_floats);
  place(scratch, args.workers * shape.scratch_bytes);
}

int64_t plan_attention(const AttentionArgs& args, const AttentionShape& shape) {
  return Planner(args, shape).fill();
}

}  // namespace anvil::kernels
