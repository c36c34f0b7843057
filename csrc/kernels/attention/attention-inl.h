// SPDX-License-Identifier: Apache-2.0
//
// Paged attention: chooses how to compute the parts of a plan, and computes them.
//
// Compiled once per instruction set, inside that set's namespace; see vec/bytes-inl.h for what that
// forbids.
#pragma once

#include <cstdint>

#include "attention/attention_plan.h"
#include "attention/few_rows-inl.h"
#include "attention/sums-inl.h"
#include "attention/tile-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Hands out pieces of a worker's scratch memory.
struct ScratchSpace {
  uintptr_t begin;
  int64_t bytes = 0;

  float* take(int64_t floats) {
    const uintptr_t address = begin + static_cast<uintptr_t>(bytes);
    bytes += round_up(floats * static_cast<int64_t>(sizeof(float)), 64);
    return reinterpret_cast<float*>(address);
  }
};

// Pieces are taken as for float32, the larger of the two products.
struct WorkerScratch {
  float *query, *keys, *values, *units, *key_units, *logits, *out, *weights, *states, *part;
  int64_t bytes;

  WorkerScratch(const AttentionArgs& args, char* memory) {
    const int64_t key_columns = padded_columns(args.head_size);
    const int64_t value_columns = padded_columns(args.value_head_size);
    const int64_t rows = larger(kMostTileRows, kMostHeadRows);
    // As a number: there is no memory yet when its size is asked for.
    ScratchSpace space = {reinterpret_cast<uintptr_t>(memory)};
    query = space.take(rows * key_columns);  // two terms of half a float32 each
    keys = space.take(kBlockKeys * key_columns);
    values = space.take(kBlockKeys * value_columns);
    units = space.take(kBlockKeys * value_columns);
    key_units = space.take(key_columns * kStrips * kGroupKeys);
    logits = space.take(kBlockKeys * rows);
    out = space.take(rows * value_columns);
    weights = space.take(kChunkKeys * kMostFewRows);
    states = space.take(rows * (value_columns + 2));
    part = space.take(rows * (value_columns + 2));
    bytes = space.bytes;
  }
};

inline bool held_in_pairs(CacheType type) {
  return type != CacheType::kFloat32 && type != CacheType::kFp16;
}

// Up to how many rows of a KV head cost less here than as a tile, measured on caches that lie in
// memory and in the processor's. Of what is two terms here a tile is float32, at half the rate.
inline int64_t few_rows(const AttentionArgs& args) {
#if defined(__AVX512BF16__)
  if (held_in_pairs(args.cache_type)) {
    if (args.type == ElementType::kBf16) return args.cache_type == CacheType::kBf16 ? 10 : 12;
    if (args.fixed_split == 0) return kMostFewRows;
  }
#endif
  return ANVIL_VECTOR_BYTES == 64 ? 8 : 10;
}

inline AttentionShape attention_shape(const AttentionArgs& args) {
  return {kMostTileRows, smaller(few_rows(args), kMostTileRows), kMostHeadRows,
          padded_columns(args.value_head_size), WorkerScratch(args, nullptr).bytes};
}

inline int64_t attention_workspace_bytes(const AttentionArgs& args) {
  AttentionArgs sized = args;
  sized.workspace = nullptr;
  return AttentionPlan(sized, attention_shape(args)).bytes;
}

inline int64_t attention_plan(const AttentionArgs& args) {
  return plan_attention(args, attention_shape(args));
}

template <typename Product, int kTerms>
inline void compute_few_rows(const QueryRows& rows, int64_t heads, int64_t key_begin,
                             int64_t key_end, const WorkerScratch& scratch,
                             const RowStates& states) {
  using Stored = typename Product::Stored;
  using Cached = typename Product::Cached;
  const FewRowsScratch<Product> own = {reinterpret_cast<Stored*>(scratch.query),
                                       reinterpret_cast<Stored*>(scratch.weights),
                                       scratch.logits,
                                       reinterpret_cast<Cached*>(scratch.keys),
                                       reinterpret_cast<Cached*>(scratch.values),
                                       scratch.key_units};
  const int64_t columns = padded_columns(rows.args.head_size);
  for (int64_t h = 0; h < heads; ++h) {
    const QueryRows of_head = {rows.args, rows.request, rows.kv_head + h, rows.begin, rows.count};
    for (int64_t row = 0; row < rows.count; ++row) {
      load_query<Product, kTerms>(of_head, row,
                                  own.query + (h * kTerms * rows.count + row) * columns,
                                  rows.count * columns, columns);
    }
  }
  clear_states(states, heads * rows.count);
  attend_few_rows<Product, kTerms>(rows, heads, key_begin, key_end, own, states);
}

template <typename Product>
inline void compute_tile(const QueryRows& rows, int64_t key_begin, int64_t key_end,
                         const WorkerScratch& scratch, const RowStates& states) {
  using Stored = typename Product::Stored;
  const TileScratch<Product> own = {scratch.query,
                                    reinterpret_cast<Stored*>(scratch.keys),
                                    reinterpret_cast<Stored*>(scratch.values),
                                    scratch.units,
                                    scratch.logits,
                                    scratch.out};
  if (rows.count <= Floats::kLanes) {
    attend_tile<Product, 1>(rows, key_begin, key_end, own, states);
  } else if (rows.count <= 2 * Floats::kLanes) {
    attend_tile<Product, 2>(rows, key_begin, key_end, own, states);
  } else {
    attend_tile<Product, kTileStrips>(rows, key_begin, key_end, own, states);
  }
}

#if defined(__AVX512BF16__)
// Of a cache that is held in pairs.
template <int kTerms>
inline void compute_few_pair_rows(const QueryRows& rows, int64_t heads, int64_t key_begin,
                                  int64_t key_end, const WorkerScratch& scratch,
                                  const RowStates& states) {
  with_cache_element(rows.args.cache_type, [&](auto element) {
    using Element = decltype(element);
    if constexpr (__is_same(Element, Bf16)) {
      compute_few_rows<PairProduct, kTerms>(rows, heads, key_begin, key_end, scratch, states);
    } else if constexpr (sizeof(typename Element::Stored) == 1) {
      compute_few_rows<BytePairProduct<Element>, kTerms>(rows, heads, key_begin, key_end, scratch,
                                                         states);
    }
  });
}
#endif

// The states of an item's rows over its keys.
inline void compute_range(const QueryRows& rows, int64_t heads, bool few, int64_t key_begin,
                          int64_t key_end, const WorkerScratch& scratch, const RowStates& states) {
#if defined(__AVX512BF16__)
  // Products of bfloat16 are exact, and twice as many an instruction. Numbers that bfloat16 does
  // not hold are two terms, which costs what it gains: where rows are few, the cache is still read
  // where it lies, unless a row must be what it is among many.
  if (held_in_pairs(rows.args.cache_type)) {
    const bool exact = rows.args.type == ElementType::kBf16;
    if (few && exact) {
      return compute_few_pair_rows<1>(rows, heads, key_begin, key_end, scratch, states);
    }
    if (few && rows.args.fixed_split == 0) {
      return compute_few_pair_rows<2>(rows, heads, key_begin, key_end, scratch, states);
    }
    if (exact) return compute_tile<PairProduct>(rows, key_begin, key_end, scratch, states);
  }
#endif
  if (few)
    return compute_few_rows<FloatProduct, 1>(rows, heads, key_begin, key_end, scratch, states);
  compute_tile<FloatProduct>(rows, key_begin, key_end, scratch, states);
}

inline void compute_item(const AttentionArgs& args, const AttentionShape& shape,
                         const AttentionPlan& plan, const AttentionItem& item,
                         const WorkerScratch& scratch) {
  const QueryRows rows = {args, item.request, item.kv_head, item.row, item.rows};
  const int64_t columns = shape.value_columns;
  const bool alone = item.merge < 0;
  const int64_t count = item.heads * item.rows;
  const RowStates states = states_at(
      alone ? scratch.states : plan.part_sums + item.part * plan.part_floats, count, columns);
  if (!alone || args.fixed_split == 0) {
    compute_range(rows, item.heads, item.few, item.key_begin, item.key_end, scratch, states);
  } else {
    clear_states(states, count);
    const RowStates part = states_at(scratch.part, count, columns);
    for (int64_t key = item.key_begin; key < item.key_end;) {
      const int64_t end = smaller(item.key_end, (key / args.fixed_split + 1) * args.fixed_split);
      compute_range(rows, item.heads, item.few, key, end, scratch, part);
      add_states(states, part, count);
      key = end;
    }
  }
  if (alone) return finish_heads(rows, item.heads, states);

  AttentionMerge& merge = plan.merges[item.merge];
  if (__atomic_sub_fetch(&merge.missing, 1, __ATOMIC_ACQ_REL) > 0) return;
  const RowStates merged = states_at(scratch.states, count, columns);
  clear_states(merged, count);
  for (int64_t i = 0; i < merge.parts; ++i) {
    float* sums = plan.part_sums + (merge.first_part + i) * plan.part_floats;
    add_states(merged, states_at(sums, count, columns), count);
  }
  finish_heads(rows, item.heads, merged);
}

inline void attention(const AttentionArgs& args, int64_t begin, int64_t end) {
  const AttentionShape shape = attention_shape(args);
  const AttentionPlan plan(args, shape);
  for (int64_t worker = begin; worker < end; ++worker) {
    const WorkerScratch scratch(args, plan.scratch + worker * shape.scratch_bytes);
    for (;;) {
      const int64_t place = __atomic_fetch_add(plan.next, 1, __ATOMIC_RELAXED);
      if (place >= *plan.num_items) break;
      compute_item(args, shape, plan, plan.items[plan.order[place]], scratch);
    }
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
