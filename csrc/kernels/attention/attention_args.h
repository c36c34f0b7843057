// SPDX-License-Identifier: Apache-2.0
//
// Paged attention: what its kernels are given. Meanings are those of the attention contract
// (anvil_attention/contract.py), in raw pointers.
#pragma once

#include <cstdint>

#include "cache_type.h"
#include "element_type.h"

namespace anvil::kernels {

// Keys or values of a paged cache, [num_blocks, block_size, num_kv_heads, head_size]: strides in
// elements, those of the last dimension adjacent.
struct PagedRows {
  const void* data;
  int64_t block_stride, token_stride, head_stride;
};

struct AttentionArgs {
  ElementType type;      // of query and output
  CacheType cache_type;  // of keys and values

  // [num_tokens, num_heads, head_size] and [.., value_head_size]; strides in elements.
  const void* query;
  int64_t query_token_stride, query_head_stride;
  void* output;
  int64_t output_token_stride, output_head_stride;

  PagedRows keys, values;
  const int32_t* block_table;  // [num_requests, ..], rows block_table_stride apart
  int64_t block_table_stride;
  const int32_t* query_start_loc;  // [num_requests + 1]
  const int32_t* seq_lens;         // [num_requests]

  const bool* causal_per_request;  // [num_requests]; null: `causal` says it for all
  const float* alibi_slopes;       // [num_heads], or null
  const float* sinks;              // [num_heads], or null

  int64_t num_tokens, num_requests, num_heads, num_kv_heads, head_size, value_head_size;
  int64_t block_size;
  float scale;        // of the logits, the scale of the keys included
  float value_scale;  // of the output
  float soft_cap;     // 0: none
  int64_t window;     // 0: none
  bool causal;

  // 0: long ranges of keys are cut by the work in the batch. Else a range is cut after every so
  // many keys, and a row's result depends on its own request alone.
  int64_t fixed_split;

  int64_t workers;  // how many ranges of `attention` will run at once, at least 1
  void* workspace;  // of attention_workspace_bytes(), aligned to 64 bytes
};

}  // namespace anvil::kernels
