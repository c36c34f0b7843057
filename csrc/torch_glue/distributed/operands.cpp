// SPDX-License-Identifier: Apache-2.0
#include "distributed/operands.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

namespace anvil {

void Operands::check_device(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kAnvil && tensor.layout() == c10::kStrided, name_,
              " of a group with backend anvil takes dense tensors on an anvil device; got a ",
              tensor.layout(), " one on ", tensor.device(),
              ". For host tensors make the group with backend cpu:gloo,anvil:anvil.");
  TORCH_CHECK(device_ < 0 || device_ == tensor.device().index(), name_,
              " takes tensors on one device; got some on anvil:", static_cast<int>(device_),
              " and on ", tensor.device());
  device_ = tensor.device().index();
}

at::Tensor Operands::contiguous(const at::Tensor& tensor, bool with_values) {
  check_device(tensor);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  at::Tensor plain = at::empty(tensor.sizes(), tensor.options());
  if (with_values) plain.copy_(tensor);
  return plain;
}

comm::ConstBuffer Operands::in(const at::Tensor& tensor) {
  const at::Tensor plain = contiguous(tensor, /*with_values=*/true);
  reads_.push_back(plain);
  return {plain.const_data_ptr(), plain.nbytes()};
}

comm::Buffer Operands::out(const at::Tensor& tensor) {
  at::Tensor plain = contiguous(tensor, /*with_values=*/false);
  writes_.push_back(plain);
  if (!plain.is_same(tensor)) back_.emplace_back(tensor, plain);
  return {plain.mutable_data_ptr(), plain.nbytes()};
}

comm::Buffer Operands::in_out(const at::Tensor& tensor) {
  at::Tensor plain = contiguous(tensor, /*with_values=*/true);
  reads_.push_back(plain);
  writes_.push_back(plain);
  if (!plain.is_same(tensor)) back_.emplace_back(tensor, plain);
  return {plain.mutable_data_ptr(), plain.nbytes()};
}

std::vector<comm::ConstBuffer> Operands::in(const std::vector<at::Tensor>& tensors) {
  std::vector<comm::ConstBuffer> buffers;
  for (const at::Tensor& tensor : tensors) buffers.push_back(in(tensor));
  return buffers;
}

std::vector<comm::Buffer> Operands::out(const std::vector<at::Tensor>& tensors) {
  std::vector<comm::Buffer> buffers;
  for (const at::Tensor& tensor : tensors) buffers.push_back(out(tensor));
  return buffers;
}

void Operands::add_accesses(Accesses& accesses) const {
  for (const at::Tensor& tensor : reads_) accesses.read(tensor);
  for (const at::Tensor& tensor : writes_) accesses.write(tensor);
}

void Operands::copy_back() const {
  for (const auto& [theirs, ours] : back_) theirs.copy_(ours);
}

c10::DeviceIndex Operands::device() const { return device_ < 0 ? current_device() : device_; }

std::vector<comm::Buffer> equal_parts(comm::Buffer whole, int ranks) {
  const size_t bytes = whole.bytes / static_cast<size_t>(ranks);
  std::vector<comm::Buffer> parts;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    parts.push_back({static_cast<std::byte*>(whole.data) + rank * bytes, bytes});
  }
  return parts;
}

std::vector<comm::ConstBuffer> equal_parts(comm::ConstBuffer whole, int ranks) {
  std::vector<comm::ConstBuffer> parts;
  for (const comm::Buffer& part :
       equal_parts(comm::Buffer{const_cast<void*>(whole.data), whole.bytes}, ranks)) {
    parts.push_back({part.data, part.bytes});
  }
  return parts;
}

comm::DataType data_type(const char* name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kChar:
      return comm::DataType::kInt8;
    case at::kByte:
      return comm::DataType::kUint8;
    case at::kShort:
      return comm::DataType::kInt16;
    case at::kUInt16:
      return comm::DataType::kUint16;
    case at::kInt:
      return comm::DataType::kInt32;
    case at::kUInt32:
      return comm::DataType::kUint32;
    case at::kLong:
      return comm::DataType::kInt64;
    case at::kUInt64:
      return comm::DataType::kUint64;
    case at::kHalf:
      return comm::DataType::kFloat16;
    case at::kBFloat16:
      return comm::DataType::kBfloat16;
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kDouble:
      return comm::DataType::kFloat64;
    case at::kBool:
      return comm::DataType::kBool;
    default:
      TORCH_CHECK_TYPE(false, name, " cannot reduce tensors of ", tensor.scalar_type(),
                       " on anvil: convert them first.");
  }
}

}  // namespace anvil
