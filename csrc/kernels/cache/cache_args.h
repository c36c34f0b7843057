// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the KV-cache kernels. Plain data, shared by the launchers and every instruction set:
// no constructors or member functions, so that no inline code is emitted from this header.
#pragma once

#include <cstdint>

namespace anvil::kernels {

// Slots of tokens in the paged cache; all arrays are contiguous unless a stride is given.
struct SlotMappingArgs {
  const int32_t* query_start_loc;  // [num_requests + 1], first token of each request
  const int64_t* positions;        // [num_tokens], position of each token in its request
  const int32_t* block_table;      // [num_requests, ...], block numbers
  int64_t* slot_mapping;           // [max_num_tokens], written
  int64_t block_table_stride;      // elements between rows
  int64_t num_requests;
  int64_t num_tokens;     // tokens from here to the end of the range get pad_id
  int64_t block_size;     // tokens a block holds on this rank
  int64_t cp_world_size;  // context-parallel ranks that share a request
  int64_t cp_rank;
  int64_t cp_interleave;  // consecutive tokens that go to the same rank
  int64_t pad_id;         // slot of padding, and of tokens that live on another rank
};

// Rows of one tensor (keys or values) scattered into the paged cache. Strides are in bytes, so one
// kernel serves every element type. A token's data is `runs` contiguous pieces of `run_bytes`: one
// per head, or a single one where heads lie next to each other on both sides.
struct CacheScatter {
  const char* source;  // [num_tokens, runs, run_bytes]
  char* cache;         // [num_blocks, block_size, runs, run_bytes]
  int64_t source_token_stride;
  int64_t source_run_stride;
  int64_t cache_block_stride;
  int64_t cache_token_stride;
  int64_t cache_run_stride;
  int64_t runs;
  int64_t run_bytes;
};

struct WriteKvCacheArgs {
  CacheScatter key;
  CacheScatter value;
  const int64_t*
      slot_mapping;  // [num_tokens]; negative: skip the token; must be below the cache's end
  int64_t block_size;
};

// Copies of whole blocks. Each block is one contiguous piece of memory.
struct CopyBlocksArgs {
  const char* source;
  char* destination;           // may be `source`; otherwise disjoint from it
  int64_t source_stride;       // bytes between blocks
  int64_t destination_stride;  // bytes between blocks
  int64_t block_bytes;
  const int64_t* block_pairs;  // [num_pairs, 2]: source block, destination block; in range
  int64_t num_pairs;
};

}  // namespace anvil::kernels
