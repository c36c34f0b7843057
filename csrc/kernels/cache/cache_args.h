// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the KV-cache kernels. Plain data, shared by the launchers and every instruction set:
// no constructors or member functions, so that no inline code is emitted from this header.
#pragma once

#include <cstdint>

#include "cache_type.h"
#include "element_type.h"

namespace anvil::kernels {

// Rows of one tensor (keys or values) scattered into the paged cache. Strides are in bytes, so one
// kernel serves every element type. A token's data is `runs` contiguous pieces: one per head, or a
// single one where heads lie next to each other on both sides. They are copied as `run_bytes`, or
// `converts`: then each of `run_elements` is divided by `scale` and rounded to the cache's type.
struct CacheScatter {
  const char* source;  // [num_tokens, runs, ..]
  char* cache;         // [num_blocks, block_size, runs, ..]
  int64_t source_token_stride;
  int64_t source_run_stride;
  int64_t cache_block_stride;
  int64_t cache_token_stride;
  int64_t cache_run_stride;
  int64_t runs;
  int64_t run_bytes;  // of the source
  bool converts = false;
  int64_t run_elements = 0;
  ElementType source_type = ElementType::kFloat32;
  CacheType cache_type = CacheType::kFloat32;
  float scale = 1;
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

// Requests' rows of block numbers. Requests without query rows are padding.
struct BlockTableArgs {
  const int32_t* block_table;      // [requests, max_blocks]
  int64_t row_stride;              // elements between rows
  const int32_t* query_start_loc;  // [requests + 1]
  const int32_t* seq_lens;         // [requests]: tokens whose blocks are used
  int64_t max_blocks;
  int64_t block_size;
  int64_t num_blocks;  // of the cache
};

// The first request with something wrong, or -1: block_table[request, index] is outside of the
// cache, or the request is too long for a row (or of negative length) where `index` is -1.
struct BlockTableFault {
  int64_t request;
  int64_t index;
};

}  // namespace anvil::kernels
