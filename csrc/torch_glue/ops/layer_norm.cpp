// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <optional>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/rows.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::layer_norm");

at::Tensor layer_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double epsilon) {
  check_floats(kCheck, input, "x");
  const at::Tensor x = readable_rows(input);
  const int64_t size = x.size(-1);
  at::Tensor weights = parameter_of(kCheck, weight, "weight", x, size);
  at::Tensor biases = parameter_of(kCheck, bias, "bias", x, size);
  if (weights.defined() && biases.defined() && weights.scalar_type() != biases.scalar_type()) {
    weights = weights.to(at::kFloat);
    biases = biases.to(at::kFloat);
  }
  at::Tensor result = at::empty(x.sizes(), x.options());
  const int64_t rows = count_rows(x);
  if (rows == 0) return result;

  kernels::LayerNormArgs args = {.input = rows_of(x),
                                 .output = rows_of(result),
                                 .weight = parameters_of(weights),
                                 .bias = parameters_of(biases),
                                 .size = size,
                                 .epsilon = epsilon};
  if (!weights.defined()) args.weight.type = args.bias.type;
  const c10::Device device = x.device();
  const auto kernel = kernels::active_table().layer_norm;
  const int64_t grain = grain_of(size * 2 * x.element_size());
  launch(kCheck.op(), device, {x, weights, biases}, {result}, [=] {
    for_ranges(device, rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return result;
}

ANVIL_OPS(m) { m.impl("layer_norm", &layer_norm); }

}  // namespace
}  // namespace anvil::ops
