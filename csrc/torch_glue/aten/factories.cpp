// SPDX-License-Identifier: Apache-2.0
// Tensors come into being and change their storage here.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "core/allocator.h"
#include "core/storage.h"

namespace anvil {
namespace {

using at::IntArrayRef;
using at::Tensor;

c10::Device checked_device(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided,
                              "anvil has dense tensors only; got layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return resolve_device(device);
}

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(checked_device(layout, device, pin_memory));
  return at::detail::empty_generic(size, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), memory_format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(checked_device(layout, device, pin_memory));
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Zeros come from the allocator: new pages are zero already, so a large cache costs nothing until
// it is used.
Tensor zeros(IntArrayRef size, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory) {
  const c10::Device target = checked_device(layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, type.itemsize());
  Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(new_storage(bytes, target.index(), /*zeroed=*/true)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  result.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return result;
}

// Points the tensor at `storage` and makes the storage large enough for it.
void place(const Tensor& self, IntArrayRef size, std::optional<IntArrayRef> stride,
           int64_t offset) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (stride.has_value()) {
    impl->set_sizes_and_strides(size, *stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  const size_t needed = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(),
                                                         impl->dtype().itemsize(), offset);
  c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  if (impl->numel() > 0 && needed > storage.nbytes()) resize_storage(storage, needed);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size,
                      std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  if (self.sizes() != size) place(self, size, std::nullopt, self.storage_offset());
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return self;
}

Tensor& set_storage_and_shape(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size,
                              IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Expected a storage on ", self.device(),
              " but found one on ", source.device());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  place(self, size, stride.data() != nullptr ? std::make_optional(stride) : std::nullopt, offset);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_and_shape(self, std::move(source), 0, {elements},
                               IntArrayRef(nullptr, static_cast<size_t>(0)));
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_and_shape(self, source.storage(), source.storage_offset(), source.sizes(),
                               source.strides());
}

Tensor& set_empty(Tensor& self) {
  return set_storage_and_shape(self, c10::Storage(new_storage(0, self.device().index())), 0, {0},
                               {1});
}

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("zeros", TORCH_FN(zeros));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_and_shape));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
}

}  // namespace
}  // namespace anvil
