// SPDX-License-Identifier: Apache-2.0
//
// Which part of a batch is computed at a time. A part is some rows of one KV head of a request over
// a range of its keys; where a range of keys is cut, the one who finishes last merges the sums.
//
// The plan is made from the lengths as they are when the kernel runs, so that a graph which was
// captured with other lengths stays right. What bounds its size is known before.
#pragma once

#include <cstdint>

#include "attention/attention_args.h"

namespace anvil::kernels {

struct AttentionItem {
  int32_t request;
  int32_t kv_head, heads;      // [kv_head, kv_head + heads)
  int32_t row, rows;           // [row, row + rows) of each KV head's rows; see query_rows-inl.h
  int32_t key_begin, key_end;  // the union of what the rows see, or a part of it
  int32_t merge;               // which AttentionMerge takes its sums; -1: it is alone
  int32_t part;                // place of its sums in the workspace
  bool few;                    // computed without tiles
};

// Items whose sums are one result.
struct AttentionMerge {
  int32_t first_part, parts;
  int32_t missing;  // items that have not finished
};

// What an instruction set's kernels ask of a plan.
struct AttentionShape {
  int64_t tile_rows;      // rows of an item, at most
  int64_t few_rows;       // up to how many rows of a KV head are computed without tiles
  int64_t head_rows;      // rows of an item of several KV heads, at most
  int64_t value_columns;  // floats of a row's sums
  int64_t scratch_bytes;  // of a worker
};

// The workspace. All offsets are those of one call's host-side numbers.
struct AttentionPlan {
  int64_t* num_items;
  int64_t* next;         // place in `order` of the next item to be computed; shared by the workers
  AttentionItem* items;  // [num_items]
  int32_t* class_of;     // [num_items]: by cost
  int32_t* order;        // [num_items]: the longest first
  AttentionMerge* merges;
  float* part_sums;  // [parts][part_floats]
  int64_t part_floats, max_items, max_parts;
  char* scratch;  // [workers][scratch_bytes]
  int64_t bytes;  // of all

  AttentionPlan(const AttentionArgs& args, const AttentionShape& shape);
};

// Fills the plan for the lengths that `args` point to. Returns how many workers are worth it.
int64_t plan_attention(const AttentionArgs& args, const AttentionShape& shape);

}  // namespace anvil::kernels
