// SPDX-License-Identifier: Apache-2.0
#include "ops/packed_weight.h"

namespace anvil::ops {

int64_t strips_of(int64_t columns) {
  return (columns + kernels::kStripColumns - 1) / kernels::kStripColumns;
}

std::vector<int64_t> packed_shape(kernels::ElementType type, int64_t columns, int64_t depth) {
  if (type == kernels::ElementType::kBf16) {
    return {strips_of(columns), (depth + 1) / 2, kernels::kStripColumns, 2};
  }
  return {strips_of(columns), depth, kernels::kStripColumns};
}

kernels::ElementType check_packed(const Checks& check, const at::Tensor& packed, int64_t columns,
                                  int64_t depth) {
  const kernels::ElementType type = check.float_type(packed, "packed");
  const std::vector<int64_t> shape = packed_shape(type, columns, depth);
  TORCH_CHECK_VALUE(packed.sizes() == shape && packed.is_contiguous(), check.op(),
                    ": packed must be what anvil::pack_linear makes of a ", packed.scalar_type(),
                    " weight [", columns, ", ", depth, "]: ", at::IntArrayRef(shape),
                    ", contiguous; but its shape is ", packed.sizes(), " and its strides are ",
                    packed.strides());
  return type;
}

kernels::InputRounding input_rounding(const Checks& check, at::ScalarType weight_type,
                                      std::optional<at::ScalarType> input_dtype,
                                      bool keep_remainders) {
  TORCH_CHECK_TYPE(!input_dtype.has_value() || *input_dtype == weight_type, check.op(),
                   ": input_dtype must be that of the weights, ", weight_type, ", but is ",
                   input_dtype.value_or(weight_type));
  if (!keep_remainders) {
    return input_dtype.has_value() ? kernels::InputRounding::kAll : kernels::InputRounding::kNone;
  }
  TORCH_CHECK_VALUE(input_dtype == at::kBFloat16, check.op(),
                    ": keep_remainders needs an input_dtype of bfloat16");
  return kernels::InputRounding::kMost;
}

}  // namespace anvil::ops
