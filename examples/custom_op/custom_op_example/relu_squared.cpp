// SPDX-License-Identifier: Apache-2.0
// relu(x)^2, row by row. Rows may be at any distance from each other; their elements are
// contiguous.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace {

at::Tensor relu_squared(const at::Tensor& x) {
  TORCH_CHECK_TYPE(x.is_floating_point(), "relu_squared: x must be floating point, and is ",
                   x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() == 2, "relu_squared: x must be [rows, width], and is ", x.sizes());
  TORCH_CHECK_VALUE(x.size(1) <= 1 || x.stride(1) == 1,
                    "relu_squared: the elements of a row of x must be contiguous");
  at::Tensor result = at::empty(x.sizes(), x.options());
  const int64_t width = x.size(1);
  const int64_t stride = x.stride(0);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "relu_squared", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = result.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0), /*grain_size=*/16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t column = 0; column < width; ++column) {
          const Wide value = from[row * stride + column];
          // Not max(value, 0): NaN stays NaN.
          to[row * width + column] = static_cast<scalar_t>(value < 0 ? 0 : value * value);
        }
      }
    });
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(custom_op_example, m) {
  m.def("relu_squared(Tensor x) -> Tensor", {at::Tag::pt2_compliant_tag});
}

// Anvil's tensors are in memory that the CPU sees: the device runs CPU kernels of ops that have
// none of its own. For another vendor's device, register its kernel here as well.
TORCH_LIBRARY_IMPL(custom_op_example, CPU, m) { m.impl("relu_squared", relu_squared); }
