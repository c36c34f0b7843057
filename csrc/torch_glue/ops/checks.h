// SPDX-License-Identifier: Apache-2.0
// Argument checks of the native ops. Every message names the op and the argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "cache_type.h"
#include "element_type.h"

namespace anvil::ops {

// Which of the kernels' types the elements have; the tensor is float32, bfloat16 or float16.
kernels::ElementType element_type(const at::Tensor& tensor);

// What the kernels call the type of a cache that they read and write numbers of, or nothing.
std::optional<kernels::CacheType> cache_type(const at::Tensor& cache);

// Checks for one op. Failures raise Python's TypeError (dtype), ValueError (shape, layout, device,
// a number) or IndexError (an element of an index tensor).
class Checks {
 public:
  explicit constexpr Checks(const char* op) : op_(op) {}

  void dtype(const at::Tensor& tensor, const char* name, at::ScalarType expected) const;
  // float32, bfloat16 or float16.
  kernels::ElementType float_type(const at::Tensor& tensor, const char* name) const;
  // int64 or int32.
  void index_type(const at::Tensor& tensor, const char* name) const;
  void dim(const at::Tensor& tensor, const char* name, int64_t expected) const;
  // One-dimensional and without gaps, as index arrays are.
  void index_array(const at::Tensor& tensor, const char* name, at::ScalarType dtype) const;
  // [n, 2] pairs of block numbers, int64, without gaps; on the CPU or on `device`.
  void block_pairs(const at::Tensor& pairs, const char* name, c10::Device device) const;
  // One int32 on `device`: how many rows an op computes, read when it runs.
  void rows_in_use(const at::Tensor& tensor, c10::Device device) const;
  void last_dim_contiguous(const at::Tensor& tensor, const char* name) const;
  void device(const at::Tensor& tensor, const char* name, c10::Device expected) const;
  void at_least(int64_t value, const char* name, int64_t low) const;
  // `written` shares no memory with `read`, as far as torch can tell from their strides.
  void disjoint(const at::Tensor& written, const char* written_name, const at::Tensor& read,
                const char* read_name) const;
  // No two elements of a tensor that is written share memory, as far as torch can tell.
  void writable(const at::Tensor& tensor, const char* name) const;
  // Every values[i * stride], i < count, lies in [low, high); reports the first that does not as
  // "<name>[<first + i>]" and says what `high` means.
  void in_range(const int64_t* values, int64_t count, int64_t stride, int64_t low, int64_t high,
                const char* name, int64_t first, const char* meaning) const;
  void in_range(const int32_t* values, int64_t count, int64_t stride, int64_t low, int64_t high,
                const char* name, int64_t first, const char* meaning) const;

  const char* op() const { return op_; }

 private:
  [[noreturn]] void out_of_range(int64_t value, int64_t low, int64_t high, const char* name,
                                 int64_t index, const char* meaning) const;

  const char* op_;
};

}  // namespace anvil::ops
