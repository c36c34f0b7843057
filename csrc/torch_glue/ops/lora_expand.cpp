// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "dispatch.h"
#include "ops/launch.h"
#include "ops/lora.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::lora_expand");

void lora_expand(const at::Tensor& shrunk, at::TensorList b, const at::Tensor& order,
                 const at::Tensor& starts, at::Tensor& output, int64_t offset, bool add,
                 const std::optional<at::Tensor>& ranks) {
  const c10::Device device = output.device();
  const kernels::ElementType output_type = kCheck.float_type(output, "output");
  kCheck.dim(output, "output", 2);
  kCheck.last_dim_contiguous(output, "output");
  kCheck.writable(output, "output");
  const int64_t tokens = output.size(0);
  const at::Tensor in_use = ranks.value_or(at::Tensor());
  LoraCall call = lora_call(kCheck, b, "b", 1, 2, {order, starts, in_use}, device, tokens);
  call.check_shrunk(shrunk, device);
  kCheck.disjoint(output, "output", shrunk, "shrunk");
  kCheck.at_least(offset, "offset", 0);
  int64_t blocks = 0;
  for (kernels::LoraSlice& slice : call.slices) {
    slice.offset += offset;
    blocks += (slice.columns + kernels::kLoraColumns - 1) / kernels::kLoraColumns;
  }
  const kernels::LoraSlice& last = call.slices.back();
  TORCH_CHECK_VALUE(last.offset + last.columns <= output.size(1), kCheck.op(),
                    ": b has columns up to ", last.offset + last.columns,
                    " from offset on, but output has shape ", output.sizes());

  const kernels::LoraExpandArgs args = {
      .batch = {},
      .shrunk = shrunk.const_data_ptr<float>(),
      .slice_stride = shrunk.stride(0),
      .token_stride = shrunk.stride(1),
      .output = output.mutable_data_ptr(),
      .output_type = output_type,
      .output_stride = output.stride(0),
      .add = add,
  };
  const int64_t grain = grain_of(kernels::kLoraColumns * call.rank * b[0].element_size());
  const auto kernel = kernels::active_table().lora_expand;
  launch(kCheck.op(), device, {shrunk, order, starts, in_use}, b, {output}, [=] {
    const LoraPlan plan(call);
    kernels::LoraExpandArgs now = args;
    now.batch = plan.batch();
    for_ranges(device, now.batch.run_count * blocks, grain,
               [&](int64_t begin, int64_t end) { kernel(now, begin, end); });
  });
}

ANVIL_OPS(m) { m.impl("lora_expand", &lora_expand); }

}  // namespace
}  // namespace anvil::ops
