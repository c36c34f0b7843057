// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "dispatch.h"
#include "ops/launch.h"
#include "ops/lora.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::lora_shrink");

void lora_shrink(const at::Tensor& input, at::TensorList a, const at::Tensor& order,
                 const at::Tensor& starts, at::Tensor& shrunk, double scale,
                 const std::optional<at::Tensor>& ranks) {
  const c10::Device device = input.device();
  const kernels::ElementType input_type = kCheck.float_type(input, "input");
  kCheck.dim(input, "input", 2);
  kCheck.last_dim_contiguous(input, "input");
  const int64_t tokens = input.size(0), depth = input.size(1);
  const at::Tensor in_use = ranks.value_or(at::Tensor());
  const LoraCall call = lora_call(kCheck, a, "a", 2, 1, {order, starts, in_use}, device, tokens);
  for (const at::Tensor& weight : a) {
    TORCH_CHECK_VALUE(weight.size(2) == depth, kCheck.op(), ": the last dimension of input is ",
                      depth, ", but a has shape ", weight.sizes());
  }
  call.check_shrunk(shrunk, device);
  kCheck.writable(shrunk, "shrunk");
  kCheck.disjoint(shrunk, "shrunk", input, "input");

  const kernels::LoraShrinkArgs args = {
      .batch = {},
      .input = input.const_data_ptr(),
      .input_type = input_type,
      .input_stride = input.stride(0),
      .depth = depth,
      .shrunk = shrunk.mutable_data_ptr<float>(),
      .slice_stride = shrunk.stride(0),
      .token_stride = shrunk.stride(1),
      .scale = static_cast<float>(scale),
  };
  const int64_t blocks = (call.rank + kernels::kLoraRankBlock - 1) / kernels::kLoraRankBlock;
  const int64_t grain = grain_of(kernels::kLoraRankBlock * depth * a[0].element_size());
  const auto kernel = kernels::active_table().lora_shrink;
  launch(kCheck.op(), device, {input, order, starts, in_use}, a, {shrunk}, [=] {
    const LoraPlan plan(call);
    kernels::LoraShrinkArgs now = args;
    now.batch = plan.batch();
    for_ranges(device, now.batch.run_count * now.batch.slice_count * blocks, grain,
               [&](int64_t begin, int64_t end) { kernel(now, begin, end); });
  });
}

ANVIL_OPS(m) { m.impl("lora_shrink", &lora_shrink); }

}  // namespace
}  // namespace anvil::ops
