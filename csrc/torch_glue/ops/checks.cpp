// SPDX-License-Identifier: Apache-2.0
#include "ops/checks.h"

#include <ATen/MemoryOverlap.h>

#include "dispatch.h"

namespace anvil::ops {

std::optional<kernels::CacheType> cache_type(const at::Tensor& cache) {
  switch (cache.scalar_type()) {
    case at::kFloat:
      return kernels::CacheType::kFloat32;
    case at::kBFloat16:
      return kernels::CacheType::kBf16;
    case at::kHalf:
      return kernels::CacheType::kFp16;
    case at::kFloat8_e4m3fn:
      return kernels::CacheType::kE4m3;
    case at::kFloat8_e5m2:
      return kernels::CacheType::kE5m2;
    case at::kChar:
      return kernels::CacheType::kInt8;
    default:
      return std::nullopt;
  }
}

void Checks::dtype(const at::Tensor& tensor, const char* name, at::ScalarType expected) const {
  TORCH_CHECK_TYPE(tensor.scalar_type() == expected, op_, ": ", name, " must be ", expected,
                   ", but is ", tensor.scalar_type());
}

kernels::ElementType element_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return kernels::ElementType::kBf16;
    case at::kHalf:
      return kernels::ElementType::kFp16;
    default:
      return kernels::ElementType::kFloat32;
  }
}

kernels::ElementType Checks::float_type(const at::Tensor& tensor, const char* name) const {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op_, ": ",
                   name, " must be float32, bfloat16 or float16, but is ", type);
  return element_type(tensor);
}

void Checks::index_type(const at::Tensor& tensor, const char* name) const {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt, op_, ": ",
                   name, " must be int64 or int32, but is ", tensor.scalar_type());
}

void Checks::dim(const at::Tensor& tensor, const char* name, int64_t expected) const {
  TORCH_CHECK_VALUE(tensor.dim() == expected, op_, ": ", name, " must have ", expected,
                    " dimension(s), but its shape is ", tensor.sizes());
}

void Checks::index_array(const at::Tensor& tensor, const char* name, at::ScalarType dtype) const {
  this->dtype(tensor, name, dtype);
  dim(tensor, name, 1);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), op_, ": ", name,
                    " must be contiguous, but its stride is ", tensor.stride(0));
}

void Checks::block_pairs(const at::Tensor& pairs, const char* name, c10::Device device) const {
  dtype(pairs, name, at::kLong);
  TORCH_CHECK_VALUE(pairs.dim() == 2 && pairs.size(1) == 2, op_, ": ", name,
                    " must have shape [n, 2], but has ", pairs.sizes());
  TORCH_CHECK_VALUE(pairs.is_contiguous(), op_, ": ", name,
                    " must be contiguous, but its strides are ", pairs.strides());
  if (!pairs.device().is_cpu()) this->device(pairs, name, device);
}

void Checks::rows_in_use(const at::Tensor& tensor, c10::Device device) const {
  this->device(tensor, "rows_in_use", device);
  dtype(tensor, "rows_in_use", at::kInt);
  TORCH_CHECK_VALUE(tensor.numel() == 1, op_, ": rows_in_use has ", tensor.numel(),
                    " elements instead of one");
}

void Checks::last_dim_contiguous(const at::Tensor& tensor, const char* name) const {
  TORCH_CHECK_VALUE(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, op_, ": the last dimension of ",
                    name, " must be contiguous, but its strides are ", tensor.strides());
}

void Checks::device(const at::Tensor& tensor, const char* name, c10::Device expected) const {
  TORCH_CHECK_VALUE(tensor.device() == expected, op_, ": ", name, " must be on ", expected,
                    " like the other arguments, but is on ", tensor.device());
}

void Checks::at_least(int64_t value, const char* name, int64_t low) const {
  TORCH_CHECK_VALUE(value >= low, op_, ": ", name, " must be at least ", low, ", but is ", value);
}

void Checks::disjoint(const at::Tensor& written, const char* written_name, const at::Tensor& read,
                      const char* read_name) const {
  const at::MemOverlapStatus status = at::get_overlap_status(written, read);
  TORCH_CHECK_VALUE(status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial,
                    op_, ": ", written_name, " is written and must not share memory with ",
                    read_name);
}

void Checks::writable(const at::Tensor& tensor, const char* name) const {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, op_, ": ", name,
                    " is written, but elements of it share memory (an expanded tensor?): strides ",
                    tensor.strides());
}

void Checks::in_range(const int64_t* values, int64_t count, int64_t stride, int64_t low,
                      int64_t high, const char* name, int64_t first, const char* meaning) const {
  const int64_t bad = kernels::active_table().find_out_of_range(values, count, stride, low, high);
  if (bad >= 0) out_of_range(values[bad * stride], low, high, name, first + bad, meaning);
}

void Checks::in_range(const int32_t* values, int64_t count, int64_t stride, int64_t low,
                      int64_t high, const char* name, int64_t first, const char* meaning) const {
  const int64_t bad =
      kernels::active_table().find_out_of_range_int32(values, count, stride, low, high);
  if (bad >= 0) out_of_range(values[bad * stride], low, high, name, first + bad, meaning);
}

void Checks::out_of_range(int64_t value, int64_t low, int64_t high, const char* name, int64_t index,
                          const char* meaning) const {
  TORCH_CHECK_INDEX(false, op_, ": ", name, "[", index, "] is ", value, ", but must be ",
                    value < low ? "at least " : "below ", value < low ? low : high, " (", meaning,
                    ")");
}

}  // namespace anvil::ops
