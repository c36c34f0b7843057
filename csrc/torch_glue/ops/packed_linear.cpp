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
                         const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> dtype,
                         std::optional<at::ScalarType> input_dtype,
                         const std::optional<at::Tensor>& rows_in_use, bool keep_remainders) {
  const c10::Device device = packed.device();
  kCheck.at_least(input.dim(), "the number of dimensions of input", 1);
  kCheck.at_least(columns, "columns", 0);
  kCheck.device(input, "input", device);
  const kernels::ElementType input_type = kCheck.float_type(input, "input");
  const int64_t depth = input.size(-1);
  const kernels::ElementType weight_type = check_packed(kCheck, packed, columns, depth);
  const kernels::InputRounding rounding =
      input_rounding(kCheck, packed.scalar_type(), input_dtype, keep_remainders);
  const bool biased = bias.has_value() && bias->defined();
  at::Tensor offsets;
  if (biased) {
    kCheck.dim(*bias, "bias", 1);
    kCheck.device(*bias, "bias", device);
    TORCH_CHECK_VALUE(bias->size(0) == columns, kCheck.op(), ": bias has ", bias->size(0),
                      " elements for ", columns, " columns");
    offsets = bias->contiguous();
  }
  const at::Tensor in_use = rows_in_use.value_or(at::Tensor());
  if (in_use.defined()) kCheck.rows_in_use(in_use, device);
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = columns;
  at::Tensor output = at::empty(shape, input.options().dtype(dtype.value_or(input.scalar_type())));
  const kernels::ElementType output_type = kCheck.float_type(output, "dtype");
  // Without elements there is nothing to be viewed as rows.
  const at::Tensor rows = depth > 0 && input.numel() > 0 ? as_rows(input, depth) : input;
  const int64_t count = columns > 0 ? output.numel() / columns : 0;
  kernels::PackedLinearArgs args = {
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
      .row_blocks = 0,
      .rounding = rounding,
  };
  const int64_t strip_bytes = kernels::kStripColumns * depth * packed.element_size();
  const kernels::KernelTable& table = kernels::active_table();
  const int64_t row_bytes = table.linear_input_bytes(args);
  at::Tensor prepared;
  if (row_bytes > 0) {
    prepared = at::empty({count, row_bytes}, input.options().dtype(at::kByte));
    args.prepared = prepared.mutable_data_ptr();
  }
  const int32_t* limit = in_use.defined() ? in_use.const_data_ptr<int32_t>() : nullptr;
  launch(kCheck.op(), device, {rows, packed, offsets, in_use}, {output, prepared}, [=, &table] {
    kernels::PackedLinearArgs now = args;
    if (limit != nullptr) now.rows = std::clamp<int64_t>(*limit, 0, args.rows);
    if (row_bytes > 0) {
      for_ranges(device, now.rows, grain_of(row_bytes),
                 [&](int64_t begin, int64_t end) { table.prepare_linear_input(now, begin, end); });
    }
    now.row_blocks = (now.rows + kernels::kBlockRows - 1) / kernels::kBlockRows;
    // Products of eight rows take about as long as their weights to arrive.
    const int64_t cost =
        strip_bytes * std::max<int64_t>(1, std::min(now.rows, kernels::kBlockRows) / 8);
    for_ranges(device, now.row_blocks * strips_of(now.columns), grain_of(cost),
               [&](int64_t begin, int64_t end) { table.packed_linear(now, begin, end); });
  });
  return output;
}

ANVIL_OPS(m) { m.impl("packed_linear", &packed_linear); }

}  // namespace
}  // namespace anvil::ops
