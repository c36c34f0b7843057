// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the KV-cache kernels. Plain data, shared by the launchers and every instruction set:
// no constructors or member functions, so that no inline code is emitted from this header.
#pragma once

#include <cstdint>

namespace anvil::kernels {

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
