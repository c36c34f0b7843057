// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cache/cache_args.h"
#include "vec/bytes-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline void scatter_token(const CacheScatter& tensor, int64_t token, int64_t block,
                          int64_t offset) {
  const char* from = tensor.source + token * tensor.source_token_stride;
  char* to = tensor.cache + block * tensor.cache_block_stride + offset * tensor.cache_token_stride;
  for (int64_t run = 0; run < tensor.runs; ++run) {
    copy_bytes(to + run * tensor.cache_run_stride, from + run * tensor.source_run_stride,
               tensor.run_bytes);
  }
}

inline void write_kv_cache(const WriteKvCacheArgs& args, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    const int64_t block = slot / args.block_size;
    const int64_t offset = slot - block * args.block_size;
    scatter_token(args.key, token, block, offset);
    scatter_token(args.value, token, block, offset);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
