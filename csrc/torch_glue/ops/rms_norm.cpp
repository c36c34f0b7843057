// SPDX-License-Identifier: Apache-2.0
// rms_norm, and the forms that add a residual before.
#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/rows.h"

namespace anvil::ops {
namespace {

at::Tensor like(const at::Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); }

// The part that the forms have in common; `x`, `residual` and the results are rows. `residual` and
// `total` may be undefined.
void run(const Checks& check, const at::Tensor& x, const at::Tensor& residual,
         const std::optional<at::Tensor>& weight, double epsilon,
         std::optional<int64_t> variance_size, double weight_offset, const at::Tensor& result,
         const at::Tensor& total) {
  const int64_t size = x.size(-1);
  const at::Tensor weights = parameter_of(check, weight, "weight", x, size);
  const int64_t measured = variance_size.value_or(size);
  if (variance_size.has_value()) {
    TORCH_CHECK_VALUE(measured >= 1 && measured <= size, check.op(),
                      ": variance_size must be from 1 to the ", size, " elements of a row, but is ",
                      measured);
  }
  const int64_t rows = count_rows(x);
  if (rows == 0) return;

  kernels::RmsNormArgs args = {.input = rows_of(x),
                               .residual = {},
                               .output = rows_of(result),
                               .total = {},
                               .norm = {.weight = parameters_of(weights),
                                        .size = size,
                                        .variance_size = measured,
                                        .epsilon = epsilon,
                                        .weight_offset = static_cast<float>(weight_offset)}};
  int64_t row_bytes = 2 * x.element_size();
  if (residual.defined()) {
    args.residual = rows_of(residual);
    args.total = rows_of(total);
    row_bytes += 2 * residual.element_size();
  }
  const int64_t grain = grain_of(size * row_bytes);
  const c10::Device device = x.device();
  const auto kernel = kernels::active_table().rms_norm;
  const auto body = [=] {
    for_ranges(device, rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  };
  if (residual.defined()) {
    launch(check.op(), device, {x, residual, weights}, {result, total}, body);
  } else {
    launch(check.op(), device, {x, weights}, {result}, body);
  }
}

void check_residual(const Checks& check, const at::Tensor& x, const at::Tensor& residual) {
  check_floats(check, x, "x");
  check_floats(check, residual, "residual");
  check.device(residual, "residual", x.device());
  TORCH_CHECK_VALUE(residual.sizes() == x.sizes(), check.op(), ": residual has shape ",
                    residual.sizes(), ", but x has ", x.sizes());
}

at::Tensor rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double epsilon,
                    std::optional<int64_t> variance_size, double weight_offset) {
  constexpr Checks kCheck("anvil::rms_norm");
  check_floats(kCheck, x, "x");
  at::Tensor result = like(x);
  run(kCheck, readable_rows(x), {}, weight, epsilon, variance_size, weight_offset, result, {});
  return result;
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const std::optional<at::Tensor>& weight,
    double epsilon, std::optional<int64_t> variance_size, double weight_offset) {
  constexpr Checks kCheck("anvil::fused_add_rms_norm");
  check_residual(kCheck, x, residual);
  at::Tensor result = like(x), total = like(residual);
  run(kCheck, readable_rows(x), readable_rows(residual), weight, epsilon, variance_size,
      weight_offset, result, total);
  return {std::move(result), std::move(total)};
}

void fused_add_rms_norm_in_place(at::Tensor& x, at::Tensor& residual,
                                 const std::optional<at::Tensor>& weight, double epsilon,
                                 std::optional<int64_t> variance_size, double weight_offset) {
  constexpr Checks kCheck("anvil::fused_add_rms_norm_");
  check_residual(kCheck, x, residual);
  check_writable_rows(kCheck, x, "x");
  check_writable_rows(kCheck, residual, "residual");
  kCheck.disjoint(x, "x", residual, "residual");
  if (weight.has_value() && weight->defined()) {
    kCheck.disjoint(x, "x", *weight, "weight");
    kCheck.disjoint(residual, "residual", *weight, "weight");
  }
  run(kCheck, x, residual, weight, epsilon, variance_size, weight_offset, x, residual);
}

ANVIL_OPS(m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("fused_add_rms_norm", &fused_add_rms_norm);
  m.impl("fused_add_rms_norm_", &fused_add_rms_norm_in_place);
}

}  // namespace
}  // namespace anvil::ops
