// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <vector>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::linear");

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  const c10::Device device = weight.device();
  kCheck.dim(weight, "weight", 2);
  kCheck.at_least(input.dim(), "the number of dimensions of input", 1);
  kCheck.device(input, "input", device);
  TORCH_CHECK_TYPE(weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf,
                   kCheck.op(), ": weight must be bfloat16 or float16, but is ",
                   weight.scalar_type());
  TORCH_CHECK_TYPE(input.is_floating_point() && input.element_size() <= 4, kCheck.op(),
                   ": input must be float32, bfloat16 or float16, but is ", input.scalar_type());
  const int64_t columns = weight.size(0), depth = weight.size(1);
  TORCH_CHECK_VALUE(input.size(-1) == depth, kCheck.op(), ": the last dimension of input is ",
                    input.size(-1), ", but weight has shape ", weight.sizes());
  kCheck.last_dim_contiguous(weight, "weight");
  at::Tensor wide_bias;
  if (bias.has_value() && bias->defined()) {
    kCheck.dim(*bias, "bias", 1);
    kCheck.device(*bias, "bias", device);
    TORCH_CHECK_VALUE(bias->size(0) == columns, kCheck.op(), ": bias has ", bias->size(0),
                      " elements for ", columns, " columns");
    wide_bias = bias->to(at::kFloat).contiguous();
  }
  const at::Tensor rows = input.to(at::kFloat).contiguous();
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = columns;
  at::Tensor output = at::empty(shape, rows.options());

  const kernels::LinearArgs args = {
      .input = rows.const_data_ptr<float>(),
      .weight = static_cast<const uint16_t*>(weight.const_data_ptr()),
      .bias = wide_bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr,
      .output = output.mutable_data_ptr<float>(),
      .rows = depth > 0 ? rows.numel() / depth : output.numel() / std::max<int64_t>(columns, 1),
      .columns = columns,
      .depth = depth,
      .weight_stride = weight.stride(0),
      .weight_is_fp16 = weight.scalar_type() == at::kHalf,
  };
  const auto kernel = kernels::active_table().linear;
  launch(kCheck.op(), device, {rows, weight, wide_bias}, {output}, [=] {
    for_ranges(device, args.rows > 0 ? args.columns : 0, grain_of(2 * args.depth),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return output;
}

ANVIL_OPS(m) { m.impl("linear", &linear); }

}  // namespace
}  // namespace anvil::ops
