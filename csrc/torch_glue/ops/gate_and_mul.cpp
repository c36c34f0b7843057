// SPDX-License-Identifier: Apache-2.0
// silu_and_mul and gelu_and_mul.
#include <ATen/ops/empty.h>

#include <vector>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/rows.h"

namespace anvil::ops {
namespace {

at::Tensor gate_and_mul(const Checks& check, const at::Tensor& input, kernels::Gate gate) {
  check_floats(check, input, "x");
  TORCH_CHECK_VALUE(input.size(-1) % 2 == 0, check.op(),
                    ": the last dimension of x must be two halves, but has ", input.size(-1),
                    " elements");
  const at::Tensor x = readable_rows(input);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() /= 2;
  at::Tensor result = at::empty(shape, x.options());
  const int64_t rows = count_rows(x);
  if (rows == 0) return result;

  const kernels::GateAndMulArgs args = {
      .input = rows_of(x), .output = rows_of(result), .size = shape.back(), .gate = gate};
  const c10::Device device = x.device();
  const auto kernel = kernels::active_table().gate_and_mul;
  const int64_t grain = grain_of(shape.back() * 3 * x.element_size());
  launch(check.op(), device, {x}, {result}, [=] {
    for_ranges(device, rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return result;
}

at::Tensor silu_and_mul(const at::Tensor& x) {
  return gate_and_mul(Checks("anvil::silu_and_mul"), x, kernels::Gate::kSilu);
}

at::Tensor gelu_and_mul(const at::Tensor& x, c10::string_view approximate) {
  constexpr Checks kCheck("anvil::gelu_and_mul");
  TORCH_CHECK_VALUE(approximate == "none" || approximate == "tanh", kCheck.op(),
                    ": approximate must be \"none\" or \"tanh\", but is \"", approximate, "\"");
  return gate_and_mul(kCheck, x,
                      approximate == "tanh" ? kernels::Gate::kGeluTanh : kernels::Gate::kGelu);
}

ANVIL_OPS(m) {
  m.impl("silu_and_mul", &silu_and_mul);
  m.impl("gelu_and_mul", &gelu_and_mul);
}

}  // namespace
}  // namespace anvil::ops
