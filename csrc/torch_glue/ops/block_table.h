// SPDX-License-Identifier: Apache-2.0
// Refuses a batch whose block table leads out of the cache.
#pragma once

#include <ATen/core/Tensor.h>

#include "cache/cache_args.h"
#include "ops/checks.h"

namespace anvil::ops {

// Checks dtypes, shapes and devices when it is made, and what the tensors hold when it is run,
// which raises IndexError: block_table [num_reqs, max_blocks], query_start_loc [num_reqs + 1] and
// seq_lens [num_reqs] of int32.
class BlockTableCheck {
 public:
  BlockTableCheck(const Checks& check, const at::Tensor& block_table,
                  const at::Tensor& query_start_loc, const at::Tensor& seq_lens, int64_t block_size,
                  int64_t num_blocks);

  void run() const;
  const kernels::BlockTableArgs& args() const { return args_; }
  int64_t requests() const { return requests_; }

 private:
  Checks check_;
  kernels::BlockTableArgs args_;
  int64_t requests_;
};

}  // namespace anvil::ops
