// SPDX-License-Identifier: Apache-2.0
#include "distributed/arguments.h"

namespace anvil {

comm::ReduceOp reduce_op(const char* name, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return comm::ReduceOp::kSum;
    case c10d::ReduceOp::PRODUCT:
      return comm::ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return comm::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return comm::ReduceOp::kMax;
    case c10d::ReduceOp::AVG:
      TORCH_CHECK_TYPE(tensor.scalar_type() != at::kBool, name, ": there is no average of bool.");
      return comm::ReduceOp::kAverage;
    default:
      TORCH_CHECK_VALUE(false, name, " on anvil reduces by SUM, AVG, PRODUCT, MIN or MAX.");
  }
}

const at::Tensor& only(const char* name, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, " takes one tensor; got ", tensors.size());
  return tensors.front();
}

void check_root(const char* name, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, name, ": there is no rank ", root, " in a group of ",
                    size);
}

void check_list(const char* name, size_t length, int size) {
  TORCH_CHECK_VALUE(length == static_cast<size_t>(size), name, " takes a list of ", size,
                    " tensors, one for each rank; got ", length);
}

void check_type(const char* name, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), name,
                   " takes tensors of one dtype; got ", output.scalar_type(), " and ",
                   input.scalar_type());
}

void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int size) {
  check_type(name, whole, part);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size, name, ": ", whole.numel(),
                    " elements are not those of ", size, " ranks with ", part.numel(), " each");
}

void check_same(const char* name, const at::Tensor& a, const at::Tensor& b) {
  check_type(name, a, b);
  TORCH_CHECK_VALUE(a.numel() == b.numel(), name, ": ", a.numel(), " and ", b.numel(),
                    " elements do not fit each other");
}

}  // namespace anvil
