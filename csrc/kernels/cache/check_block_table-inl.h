// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cache/cache_args.h"
#include "cache/find_out_of_range-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline BlockTableFault check_block_table(const BlockTableArgs& args, int64_t begin, int64_t end) {
  for (int64_t request = begin; request < end; ++request) {
    if (args.query_start_loc[request] == args.query_start_loc[request + 1]) continue;
    const int64_t length = args.seq_lens[request];
    const int64_t used = (length + args.block_size - 1) / args.block_size;
    if (length < 0 || used > args.max_blocks) return {request, -1};
    const int32_t* row = args.block_table + request * args.row_stride;
    const int64_t bad = find_out_of_range_int32(row, used, 1, 0, args.num_blocks);
    if (bad >= 0) return {request, bad};
  }
  return {-1, -1};
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
