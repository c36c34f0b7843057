// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/packed_weight.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::packed_embedding");

at::Tensor packed_embedding(const at::Tensor& ids, const at::Tensor& packed, int64_t rows,
                            int64_t hidden, std::optional<at::ScalarType> dtype) {
  const c10::Device device = packed.device();
  kCheck.index_type(ids, "ids");
  kCheck.device(ids, "ids", device);
  kCheck.at_least(rows, "rows", 0);
  kCheck.at_least(hidden, "hidden", 0);
  const kernels::ElementType type = check_packed(kCheck, packed, rows, hidden);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(hidden);
  at::Tensor output =
      at::empty(shape, packed.options().dtype(dtype.value_or(packed.scalar_type())));
  const kernels::ElementType output_type = kCheck.float_type(output, "dtype");
  const at::Tensor numbers = ids.contiguous();
  const int64_t count = numbers.numel();
  const kernels::EmbeddingArgs args = {
      .ids = numbers.const_data_ptr(),
      .ids_are_int32 = numbers.scalar_type() == at::kInt,
      .weight = packed.const_data_ptr(),
      .weight_stride = 0,
      .weight_type = type,
      .output = output.mutable_data_ptr(),
      .output_type = output_type,
      .hidden = hidden,
  };
  const char* name = ids.dim() == 1 ? "ids" : "ids.flatten()";
  // A unit of a row lies in a cache line of its own.
  const int64_t row_bytes = 64 * packed.size(1);
  const auto kernel = kernels::active_table().packed_embedding;
  launch(kCheck.op(), device, {numbers, packed}, {output}, [=] {
    const auto check = [&](const auto* values) {
      kCheck.in_range(values, count, 1, 0, rows, name, 0, "rows of the table");
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

ANVIL_OPS(m) { m.impl("packed_embedding", &packed_embedding); }

}  // namespace
}  // namespace anvil::ops
