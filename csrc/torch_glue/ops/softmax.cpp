// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax.
#include <ATen/ops/empty.h>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/rows.h"

namespace anvil::ops {
namespace {

at::Tensor run(const Checks& check, const at::Tensor& input, bool logarithm) {
  check_floats(check, input, "x");
  const at::Tensor x = readable_rows(input);
  at::Tensor result = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  const int64_t rows = count_rows(x), size = x.size(-1);
  if (rows == 0) return result;

  const kernels::SoftmaxArgs args = {
      .input = rows_of(x), .output = rows_of(result), .size = size, .logarithm = logarithm};
  const c10::Device device = x.device();
  const auto kernel = kernels::active_table().softmax;
  const int64_t grain = grain_of(size * (x.element_size() + result.element_size()));
  launch(check.op(), device, {x}, {result}, [=] {
    for_ranges(device, rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  return result;
}

at::Tensor softmax(const at::Tensor& x) { return run(Checks("anvil::softmax"), x, false); }

at::Tensor log_softmax(const at::Tensor& x) { return run(Checks("anvil::log_softmax"), x, true); }

ANVIL_OPS(m) {
  m.impl("softmax", &softmax);
  m.impl("log_softmax", &log_softmax);
}

}  // namespace
}  // namespace anvil::ops
