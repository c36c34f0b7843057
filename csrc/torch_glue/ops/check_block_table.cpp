// SPDX-License-Identifier: Apache-2.0
// Block numbers are read by kernels without a check of their own. This one is a command before
// them: whoever must not read outside of the cache waits for it, since later commands run all the
// same.
#include "ops/block_table.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::check_block_table");

void check_block_table(const at::Tensor& block_table, const at::Tensor& query_start_loc,
                       const at::Tensor& seq_lens, int64_t block_size, int64_t num_blocks) {
  const BlockTableCheck check(kCheck, block_table, query_start_loc, seq_lens, block_size,
                              num_blocks);
  launch(kCheck.op(), block_table.device(), {block_table, query_start_loc, seq_lens}, {},
         [=] { check.run(); });
}

ANVIL_OPS(m) { m.impl("check_block_table", &check_block_table); }

}  // namespace
}  // namespace anvil::ops
