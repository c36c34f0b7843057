// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::compute_slot_mapping");

// A token costs a few instructions, so a range needs many to be worth a worker.
constexpr int64_t kGrainTokens = 4096;

void check_context_parallel(int64_t block_size, int64_t world_size, int64_t rank,
                            int64_t interleave) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();  // products fit in 64 bits
  kCheck.at_least(block_size, "block_size", 1);
  kCheck.at_least(world_size, "cp_world_size", 1);
  kCheck.at_least(interleave, "cp_interleave", 1);
  TORCH_CHECK_VALUE(block_size <= kMax && world_size <= kMax, kCheck.op(), ": block_size ",
                    block_size, " and cp_world_size ", world_size, " must fit in 32 bits");
  TORCH_CHECK_VALUE(rank >= 0 && rank < world_size, kCheck.op(), ": cp_rank must be in [0, ",
                    world_size, "), but is ", rank);
  TORCH_CHECK_VALUE(world_size == 1 || block_size % interleave == 0, kCheck.op(),
                    ": cp_interleave must divide block_size ", block_size, ", but is ", interleave);
}

// Requests are consecutive ranges of the tokens.
void check_query_start_loc(const int32_t* starts, int64_t num_requests, int64_t num_tokens) {
  int64_t previous = 0;
  for (int64_t r = 0; r <= num_requests; ++r) {
    TORCH_CHECK_INDEX(starts[r] >= previous && starts[r] <= num_tokens, kCheck.op(),
                      ": query_start_loc[", r, "] is ", starts[r], ", but must be in [", previous,
                      ", ", num_tokens, "] (not decreasing, at most num_tokens)");
    previous = starts[r];
  }
}

// Positions that a row of the block table covers, saturating.
int64_t row_capacity(int64_t blocks_per_row, int64_t virtual_block_size) {
  int64_t capacity = 0;
  return __builtin_mul_overflow(blocks_per_row, virtual_block_size, &capacity)
             ? std::numeric_limits<int64_t>::max()
             : capacity;
}

void compute_slot_mapping(const at::Tensor& query_start_loc, const at::Tensor& positions,
                          const at::Tensor& block_table, at::Tensor& slot_mapping,
                          int64_t num_tokens, int64_t block_size, int64_t cp_world_size,
                          int64_t cp_rank, int64_t cp_interleave, int64_t pad_id) {
  kCheck.index_array(query_start_loc, "query_start_loc", at::kInt);
  kCheck.index_array(positions, "positions", at::kLong);
  kCheck.index_array(slot_mapping, "slot_mapping", at::kLong);
  kCheck.dtype(block_table, "block_table", at::kInt);
  kCheck.dim(block_table, "block_table", 2);
  kCheck.last_dim_contiguous(block_table, "block_table");
  const c10::Device device = slot_mapping.device();
  kCheck.device(query_start_loc, "query_start_loc", device);
  kCheck.device(positions, "positions", device);
  kCheck.device(block_table, "block_table", device);
  kCheck.disjoint(slot_mapping, "slot_mapping", positions, "positions");
  check_context_parallel(block_size, cp_world_size, cp_rank, cp_interleave);

  kCheck.at_least(query_start_loc.numel(), "the length of query_start_loc", 1);
  const int64_t num_requests = query_start_loc.numel() - 1;
  kCheck.at_least(num_tokens, "num_tokens", 0);
  kCheck.at_least(positions.numel(), "the length of positions", num_tokens);
  kCheck.at_least(slot_mapping.numel(), "the length of slot_mapping", num_tokens);
  kCheck.at_least(block_table.size(0), "the number of rows of block_table", num_requests);

  const kernels::SlotMappingArgs args = {
      .query_start_loc = query_start_loc.const_data_ptr<int32_t>(),
      .positions = positions.const_data_ptr<int64_t>(),
      .block_table = block_table.const_data_ptr<int32_t>(),
      .slot_mapping = slot_mapping.mutable_data_ptr<int64_t>(),
      .block_table_stride = block_table.stride(0),
      .num_requests = num_requests,
      .num_tokens = num_tokens,
      .block_size = block_size,
      .cp_world_size = cp_world_size,
      .cp_rank = cp_rank,
      .cp_interleave = cp_interleave,
      .pad_id = pad_id,
  };
  const int64_t capacity = row_capacity(block_table.size(1), block_size * cp_world_size);
  const int64_t slots = slot_mapping.numel();
  const auto kernel = kernels::active_table().compute_slot_mapping;
  launch(kCheck.op(), device, {query_start_loc, positions, block_table}, {slot_mapping}, [=] {
    const int32_t* starts = args.query_start_loc;
    check_query_start_loc(starts, num_requests, num_tokens);
    kCheck.in_range(args.positions + starts[0], starts[num_requests] - starts[0], 1, 0, capacity,
                    "positions", starts[0], "what a row of block_table covers");
    for_ranges(device, slots, kGrainTokens,
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
}

ANVIL_OPS(m) { m.impl("compute_slot_mapping", &compute_slot_mapping); }

}  // namespace
}  // namespace anvil::ops
