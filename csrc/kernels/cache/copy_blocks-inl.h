// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cache/cache_args.h"
#include "vec/bytes-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

inline void copy_blocks(const CopyBlocksArgs& args, int64_t begin, int64_t end) {
  for (int64_t pair = 0; pair < args.num_pairs; ++pair) {
    const char* from = args.source + args.block_pairs[2 * pair] * args.source_stride + begin;
    char* to = args.destination + args.block_pairs[2 * pair + 1] * args.destination_stride + begin;
    if (from != to) copy_bytes(to, from, end - begin);
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
