// SPDX-License-Identifier: Apache-2.0
#include "ops/rows.h"

#include <algorithm>

namespace anvil::ops {
namespace {

struct Dims {
  int count = 0;  // may exceed what `Rows` has room for; then the arrays end before
  int64_t sizes[kernels::kMaxRowDims] = {};
  int64_t strides[kernels::kMaxRowDims] = {};
};

// All dimensions but the last, as few as possible: dimensions of one element go, and neighbours
// that are one in memory become one.
Dims dims_of(const at::Tensor& tensor) {
  Dims dims;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) {
    const int64_t size = tensor.size(d), stride = tensor.stride(d);
    if (size == 1) continue;
    const int last = dims.count - 1;
    if (last >= 0 && last < kernels::kMaxRowDims && dims.strides[last] == size * stride) {
      dims.sizes[last] *= size;
      dims.strides[last] = stride;
      continue;
    }
    if (dims.count < kernels::kMaxRowDims) {
      dims.sizes[dims.count] = size;
      dims.strides[dims.count] = stride;
    }
    ++dims.count;
  }
  dims.count = std::max(dims.count, 1);
  return dims;
}

bool has_rows(const at::Tensor& tensor) {
  const bool gapless = tensor.size(-1) <= 1 || tensor.stride(-1) == 1;
  return gapless && dims_of(tensor).count <= kernels::kMaxRowDims;
}

}  // namespace

void check_floats(const Checks& check, const at::Tensor& tensor, const char* name) {
  check.float_type(tensor, name);
  TORCH_CHECK_VALUE(tensor.dim() >= 1, check.op(), ": ", name,
                    " must have at least one dimension, but has none");
}

at::Tensor readable_rows(const at::Tensor& tensor) {
  return has_rows(tensor) ? tensor : tensor.contiguous();
}

void check_writable_rows(const Checks& check, const at::Tensor& tensor, const char* name) {
  check.last_dim_contiguous(tensor, name);
  check.writable(tensor, name);
  TORCH_CHECK_VALUE(has_rows(tensor), check.op(), ": ", name, " is written, and its shape ",
                    tensor.sizes(), " with strides ", tensor.strides(),
                    " lies crosswise in more than ", kernels::kMaxRowDims,
                    " dimensions; pass a contiguous tensor");
}

kernels::Rows rows_of(const at::Tensor& tensor) {
  const Dims dims = dims_of(tensor);
  // Who only reads gets the same pointer.
  kernels::Rows rows = {};
  rows.data = const_cast<void*>(tensor.const_data_ptr());
  rows.type = element_type(tensor);
  rows.dims = dims.count;
  std::copy(std::begin(dims.sizes), std::end(dims.sizes), rows.sizes);
  std::copy(std::begin(dims.strides), std::end(dims.strides), rows.strides);
  return rows;
}

int64_t count_rows(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.numel() / tensor.size(-1);
}

at::Tensor parameter_of(const Checks& check, const std::optional<at::Tensor>& parameter,
                        const char* name, const at::Tensor& x, int64_t size) {
  if (!parameter.has_value() || !parameter->defined()) return {};
  check_floats(check, *parameter, name);
  check.dim(*parameter, name, 1);
  check.device(*parameter, name, x.device());
  TORCH_CHECK_VALUE(parameter->size(0) == size, check.op(), ": ", name, " has ", parameter->size(0),
                    " elements, but rows of x have ", size);
  return parameter->contiguous();
}

kernels::Parameters parameters_of(const at::Tensor& parameter) {
  if (!parameter.defined()) return {.data = nullptr, .type = kernels::ElementType::kFloat32};
  return {.data = parameter.const_data_ptr(), .type = element_type(parameter)};
}

}  // namespace anvil::ops
