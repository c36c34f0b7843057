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

void run(const char* name, void (*kernel)(const kernels::PackArgs&, int64_t, int64_t),
         const kernels::PackArgs& args, const at::Tensor& from, const at::Tensor& to) {
  const c10::Device device = from.device();
  const int64_t strip_bytes =
      2 * kernels::kStripColumns * args.depth * static_cast<int64_t>(from.element_size());
  launch(name, device, {from}, {to}, [=] {
    for_ranges(device, args.depth > 0 ? strips_of(args.columns) : 0, grain_of(strip_bytes),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
}

at::Tensor pack_linear(const at::Tensor& weight, std::optional<int64_t> unit) {
  constexpr Checks check("anvil::pack_linear");
  const kernels::ElementType type = check.float_type(weight, "weight");
  check.dim(weight, "weight", 2);
  check.last_dim_contiguous(weight, "weight");
  const int64_t columns = weight.size(0), depth = weight.size(1);
  const std::vector<int64_t> shape = packed_shape(type, columns, depth);
  const int64_t taken = shape.size() == 4 ? shape.back() : 1;
  TORCH_CHECK_VALUE(unit.value_or(taken) == taken, check.op(), ": unit must be ", taken, " for ",
                    weight.scalar_type(), ", but is ", *unit);
  at::Tensor packed = at::empty(shape, weight.options());
  // Only read from here.
  void* plain = const_cast<void*>(weight.const_data_ptr());
  run(check.op(), kernels::active_table().pack_linear,
      {plain, weight.stride(0), packed.mutable_data_ptr(), type, columns, depth}, weight, packed);
  return packed;
}

at::Tensor unpack_linear(const at::Tensor& packed, int64_t columns, int64_t depth) {
  constexpr Checks check("anvil::unpack_linear");
  check.at_least(columns, "columns", 0);
  check.at_least(depth, "depth", 0);
  const kernels::ElementType type = check_packed(check, packed, columns, depth);
  at::Tensor weight = at::empty({columns, depth}, packed.options());
  void* form = const_cast<void*>(packed.const_data_ptr());
  run(check.op(), kernels::active_table().unpack_linear,
      {weight.mutable_data_ptr(), depth, form, type, columns, depth}, packed, weight);
  return weight;
}

ANVIL_OPS(m) {
  m.impl("pack_linear", &pack_linear);
  m.impl("unpack_linear", &unpack_linear);
}

}  // namespace
}  // namespace anvil::ops
