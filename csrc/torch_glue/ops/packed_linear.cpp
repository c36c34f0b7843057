// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/packed_weight.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::packed_linear");

// The rows of `input` at one stride: itself where it is so, or a copy.
at::Tensor as_rows(const at::Tensor& input, int64_t depth) {
  if (input.dim() == 2 && (depth <= 1 || input.stride(1) == 1)) return input;
  return input.contiguous().view({-1, depth});
}

at::Tensor packed_linear(const at::Tensor& input, const at::Tensor& packed, int64_t columns,
                         const std::optional<at::Tensor>& bias,
                         std::optional<at::ScalarType> dtype) {
  const c10::Device device = packed.device();
  kCheck.at_least(input.dim(), "the number of dimensions of input", 1);
  kCheck.at_least(columns, "columns", 0);
  kCheck.device(input, "input", device);
  const kernels::ElementType input_type = kCheck.float_type(input, "input");
  const int64_t depth = input.size(-1);
  const kernels::ElementType weight_type = check_packed(kCheck, packed, columns, depth);
  const bool biased = bias.has_value() && bias->defined();
  at::Tensor offsets;
  if (biased) {
    kCheck.dim(*bias, "bias", 1);
    kCheck.device(*bias, "bias", device);
    TORCH_CHECK_VALUE(bias->size(0) == columns, kCheck.op(), ": bias has ", bias->size(0),
                      " elements for ", columns, " columns");
    offsets = bias->contiguous();
  }
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = columns;
  at::Tensor output = at::empty(shape, input.options().dtype(dtype.value_or(input.scalar_type())));
  const kernels::ElementType output_type = kCheck.float_type(output, "dtype");
  // Without elements there is nothing to be viewed as rows.
  const at::Tensor rows = depth > 0 && input.numel() > 0 ? as_rows(input, depth) : input;
  const int64_t count = columns > 0 ? output.numel() / columns : 0;
  const kernels::PackedLinearArgs args = {
      .input = rows.const_data_ptr(),
      .input_stride = rows.dim() == 2 ? rows.stride(0) : depth,
      .input_type = input_type,
      .weight = packed.const_data_ptr(),
      .weight_type = weight_type,
      .bias = biased ? offsets.const_data_ptr() : nullptr,
      .bias_type = biased ? kCheck.float_type(offsets, "bias") : input_type,
      .output = output.mutable_data_ptr(),
      .output_type = output_type,
      .rows = count,
      .columns = columns,
      .depth = depth,
      .row_blocks = (count + kernels::kBlockRows - 1) / kernels::kBlockRows,
  };
  // Products of eight rows take about as long as their weights to arrive.
  const int64_t block = std::min(count, kernels::kBlockRows);
  const int64_t cost =
      kernels::kStripColumns * depth * packed.element_size() * std::max<int64_t>(1, block / 8);
  const auto kernel = kernels::active_table().packed_linear;
  launch(kCheck.op(), device, {rows, packed, offsets}, {output}, [=] {
    for_ranges(device, args.row_blocks * strips_of(args.columns), grain_of(cost),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return output;
}

ANVIL_OPS(m) { m.impl("packed_linear", &packed_linear); }

}  // namespace
}  // namespace anvil::ops
