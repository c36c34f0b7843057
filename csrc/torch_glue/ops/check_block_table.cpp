// SPDX-License-Identifier: Apache-2.0
// Block numbers are read by kernels without a check of their own. This one is a command before
// them: whoever must not read outside of the cache waits for it, since later commands run all the
// same.
#include <algorithm>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::check_block_table");

void refuse(const kernels::BlockTableArgs& args, const kernels::BlockTableFault& fault) {
  const int64_t request = fault.request, index = fault.index;
  TORCH_CHECK_INDEX(index >= 0, kCheck.op(), ": seq_lens[", request, "] is ",
                    args.seq_lens[request], ", but a row of block_table holds ", args.max_blocks,
                    " blocks of ", args.block_size);
  TORCH_CHECK_INDEX(false, kCheck.op(), ": block_table[", request, ", ", index, "] is ",
                    args.block_table[request * args.row_stride + index],
                    ", but the cache has blocks 0 to ", args.num_blocks - 1);
}

void check_block_table(const at::Tensor& block_table, const at::Tensor& query_start_loc,
                       const at::Tensor& seq_lens, int64_t block_size, int64_t num_blocks) {
  const c10::Device device = block_table.device();
  kCheck.dtype(block_table, "block_table", at::kInt);
  kCheck.dim(block_table, "block_table", 2);
  kCheck.last_dim_contiguous(block_table, "block_table");
  kCheck.index_array(query_start_loc, "query_start_loc", at::kInt);
  kCheck.device(query_start_loc, "query_start_loc", device);
  kCheck.index_array(seq_lens, "seq_lens", at::kInt);
  kCheck.device(seq_lens, "seq_lens", device);
  kCheck.at_least(block_size, "block_size", 1);
  kCheck.at_least(num_blocks, "num_blocks", 0);
  const kernels::BlockTableArgs args = {
      .block_table = block_table.const_data_ptr<int32_t>(),
      .row_stride = block_table.stride(0),
      .query_start_loc = query_start_loc.const_data_ptr<int32_t>(),
      .seq_lens = seq_lens.const_data_ptr<int32_t>(),
      .max_blocks = block_table.size(1),
      .block_size = block_size,
      .num_blocks = num_blocks,
  };
  // Rows beyond the others' are padding too.
  const int64_t requests =
      std::min({block_table.size(0), seq_lens.size(0), query_start_loc.size(0) - 1});
  const auto kernel = kernels::active_table().check_block_table;
  launch(kCheck.op(), device, {block_table, query_start_loc, seq_lens}, {}, [=] {
    const kernels::BlockTableFault fault = kernel(args, 0, requests);
    if (fault.request >= 0) refuse(args, fault);
  });
}

ANVIL_OPS(m) { m.impl("check_block_table", &check_block_table); }

}  // namespace
}  // namespace anvil::ops
