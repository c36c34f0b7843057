// SPDX-License-Identifier: Apache-2.0
// What the two products of low-rank adapters check and plan alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora/lora_args.h"
#include "ops/checks.h"

namespace anvil::ops {

// Which token has which adapter: `order` lists tokens, those of adapter a from starts[a] up to
// starts[a + 1]. All of these live on `device`.
struct LoraTokens {
  at::Tensor order;   // int32 [n]
  at::Tensor starts;  // int32 [adapters + 1]
  at::Tensor ranks;   // int32 [slices, adapters], or undefined: all ranks are in use
};

// What is known of a call before its tensors have their values.
struct LoraCall {
  std::vector<kernels::LoraSlice> slices;
  kernels::ElementType weight_type;
  int64_t adapters, rank, tokens;
  const int32_t *order, *starts, *ranks;
  int64_t order_size;
  Checks check;

  // What lies between the two products: float32 [slices, tokens, rank], rows contiguous.
  void check_shrunk(const at::Tensor& shrunk, c10::Device device) const;
};

// Checks the weights, one [adapters, ...] a slice and all of one dtype with elements of dimension
// `inner` side by side, and who is to use them. `rank_dim`: which dimension the ranks are.
LoraCall lora_call(const Checks& check, at::TensorList weights, const char* name, int inner,
                   int rank_dim, const LoraTokens& tokens, c10::Device device, int64_t rows);

// The same once the values are there: what the kernels get. Refers to the call.
// Raises IndexError where order, starts or ranks are out of range.
class LoraPlan {
 public:
  explicit LoraPlan(const LoraCall& call);
  const kernels::LoraBatch& batch() const { return batch_; }

 private:
  std::vector<kernels::LoraRun> runs_;
  kernels::LoraBatch batch_;
};

}  // namespace anvil::ops
