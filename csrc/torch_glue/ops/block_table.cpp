// SPDX-License-Identifier: Apache-2.0
#include "ops/block_table.h"

#include <algorithm>

#include "dispatch.h"

namespace anvil::ops {

BlockTableCheck::BlockTableCheck(const Checks& check, const at::Tensor& block_table,
                                 const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                                 int64_t block_size, int64_t num_blocks)
    : check_(check) {
  const c10::Device device = block_table.device();
  check.dtype(block_table, "block_table", at::kInt);
  check.dim(block_table, "block_table", 2);
  check.last_dim_contiguous(block_table, "block_table");
  check.index_array(query_start_loc, "query_start_loc", at::kInt);
  check.device(query_start_loc, "query_start_loc", device);
  check.index_array(seq_lens, "seq_lens", at::kInt);
  check.device(seq_lens, "seq_lens", device);
  check.at_least(block_size, "block_size", 1);
  check.at_least(num_blocks, "num_blocks", 0);
  args_ = {
      .block_table = block_table.const_data_ptr<int32_t>(),
      .row_stride = block_table.stride(0),
      .query_start_loc = query_start_loc.const_data_ptr<int32_t>(),
      .seq_lens = seq_lens.const_data_ptr<int32_t>(),
      .max_blocks = block_table.size(1),
      .block_size = block_size,
      .num_blocks = num_blocks,
  };
  // Rows beyond the others' are padding too.
  requests_ = std::min({block_table.size(0), seq_lens.size(0), query_start_loc.size(0) - 1});
}

void BlockTableCheck::run() const {
  const auto fault = kernels::active_table().check_block_table(args_, 0, requests_);
  const int64_t request = fault.request, index = fault.index;
  if (request < 0) return;
  TORCH_CHECK_INDEX(index >= 0, check_.op(), ": seq_lens[", request, "] is ",
                    args_.seq_lens[request], ", but a row of block_table holds ", args_.max_blocks,
                    " blocks of ", args_.block_size);
  TORCH_CHECK_INDEX(false, check_.op(), ": block_table[", request, ", ", index, "] is ",
                    args_.block_table[request * args_.row_stride + index],
                    ", but the cache has blocks 0 to ", args_.num_blocks - 1);
}

}  // namespace anvil::ops
