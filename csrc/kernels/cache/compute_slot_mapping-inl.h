// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cache/cache_args.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// Tokens [first, last) of one request that lies on this rank alone, in blocks of 2^shift tokens.
inline void map_request_shift(const int64_t* __restrict positions, const int32_t* __restrict blocks,
                              int64_t* __restrict slots, int64_t first, int64_t last, int shift) {
  const int64_t mask = (int64_t{1} << shift) - 1;
  for (int64_t t = first; t < last; ++t) {
    const int64_t block = blocks[positions[t] >> shift];
    slots[t] = (block << shift) + (positions[t] & mask);
  }
}

inline void map_request_divide(const int64_t* __restrict positions,
                               const int32_t* __restrict blocks, int64_t* __restrict slots,
                               int64_t first, int64_t last, int64_t block_size) {
  for (int64_t t = first; t < last; ++t) {
    const int64_t index = positions[t] / block_size;
    slots[t] = blocks[index] * block_size + (positions[t] - index * block_size);
  }
}

// A request spread over cp_world_size ranks. Its tokens form virtual blocks, one block of each rank
// long; within one, ranks take turns of cp_interleave tokens.
inline void map_request_shared(const SlotMappingArgs& args, const int32_t* blocks, int64_t first,
                               int64_t last) {
  const int64_t virtual_block_size = args.block_size * args.cp_world_size;
  for (int64_t t = first; t < last; ++t) {
    const int64_t index = args.positions[t] / virtual_block_size;
    const int64_t offset = args.positions[t] - index * virtual_block_size;
    const int64_t turn = offset / args.cp_interleave;
    if (turn % args.cp_world_size != args.cp_rank) {
      args.slot_mapping[t] = args.pad_id;
      continue;
    }
    const int64_t local_offset =
        turn / args.cp_world_size * args.cp_interleave + (offset - turn * args.cp_interleave);
    args.slot_mapping[t] = blocks[index] * args.block_size + local_offset;
  }
}

inline void compute_slot_mapping(const SlotMappingArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin < args.num_tokens ? args.num_tokens : begin; t < end; ++t) {
    args.slot_mapping[t] = args.pad_id;
  }
  const bool power_of_two = (args.block_size & (args.block_size - 1)) == 0;
  const int64_t mapped_end = end < args.num_tokens ? end : args.num_tokens;
  for (int64_t r = 0; r < args.num_requests; ++r) {
    const int64_t start = args.query_start_loc[r], stop = args.query_start_loc[r + 1];
    const int64_t first = start < begin ? begin : start;
    const int64_t last = stop < mapped_end ? stop : mapped_end;
    if (first >= last) continue;
    const int32_t* blocks = args.block_table + r * args.block_table_stride;
    if (args.cp_world_size != 1) {
      map_request_shared(args, blocks, first, last);
    } else if (power_of_two) {
      map_request_shift(args.positions, blocks, args.slot_mapping, first, last,
                        __builtin_ctzll(args.block_size));
    } else {
      map_request_divide(args.positions, blocks, args.slot_mapping, first, last, args.block_size);
    }
  }
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
