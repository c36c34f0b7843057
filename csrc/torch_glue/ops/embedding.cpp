// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::embedding");

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight,
                     std::optional<at::ScalarType> dtype) {
  const c10::Device device = weight.device();
  kCheck.index_type(ids, "ids");
  kCheck.device(ids, "ids", device);
  const kernels::ElementType weight_type = kCheck.float_type(weight, "weight");
  kCheck.dim(weight, "weight", 2);
  kCheck.last_dim_contiguous(weight, "weight");
  const int64_t rows = weight.size(0), hidden = weight.size(1);

  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(hidden);
  at::Tensor output =
      at::empty(shape, weight.options().dtype(dtype.value_or(weight.scalar_type())));
  const kernels::ElementType output_type = kCheck.float_type(output, "dtype");
  const at::Tensor numbers = ids.contiguous();
  const int64_t count = numbers.numel();
  const kernels::EmbeddingArgs args = {
      .ids = numbers.const_data_ptr(),
      .ids_are_int32 = numbers.scalar_type() == at::kInt,
      .weight = weight.const_data_ptr(),
      .weight_stride = weight.stride(0),
      .weight_type = weight_type,
      .output = output.mutable_data_ptr(),
      .output_type = output_type,
      .hidden = hidden,
  };
  const char* name = ids.dim() == 1 ? "ids" : "ids.flatten()";
  const int64_t row_bytes = hidden * (weight.element_size() + output.element_size());
  const auto kernel = kernels::active_table().embedding;
  launch(kCheck.op(), device, {numbers, weight}, {output}, [=] {
    const auto check = [&](const auto* values) {
      kCheck.in_range(values, count, 1, 0, rows, name, 0, "rows of weight");
    };
    if (args.ids_are_int32) {
      check(static_cast<const int32_t*>(args.ids));
    } else {
      check(static_cast<const int64_t*>(args.ids));
    }
    for_ranges(device, count, grain_of(row_bytes),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return output;
}

ANVIL_OPS(m) { m.impl("embedding", &embedding); }

}  // namespace
}  // namespace anvil::ops
