// SPDX-License-Identifier: Apache-2.0
#include "aten/host_alias.h"

#include <ATen/ops/clone_ops.h>

#include "anvil/runtime.h"
#include "core/storage.h"
#include "core/wait.h"

namespace anvil {

at::Tensor host_view(const at::Tensor& tensor, c10::Storage storage) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // With no autograd keys the alias counts as an inference tensor: no version counter to allocate,
  // and operations that a CPU kernel calls go straight to other CPU kernels.
  const c10::DispatchKeySet keys =
      c10::DispatchKeySet(c10::DispatchKey::CPU) | (impl->key_set() & kLazyBits);
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), keys, impl->dtype());
  c10::TensorImpl* out = alias.unsafeGetTensorImpl();
  out->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (C10_UNLIKELY(impl->is_wrapped_number())) out->set_wrapped_number(true);
  return alias;
}

at::Tensor host_alias(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(impl->has_storage() && impl->layout() == c10::kStrided,
                              "anvil has dense tensors only; got layout ", impl->layout());
  return host_view(tensor, c10::Storage(host_twin(impl->unsafe_storage())));
}

at::Tensor host_tensor(const at::Tensor& tensor) {
  const at::Tensor inner = host_alias(tensor);  // refuses what has no storage
  synchronize_device(tensor.device().index());
  const c10::StorageImpl* twin = inner.storage().unsafeGetStorageImpl();
  c10::Storage owning(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(twin->nbytes()),
      at::DataPtr(
          const_cast<void*>(twin->data()), new c10::Storage(tensor.storage()),
          [](void* context) { delete static_cast<c10::Storage*>(context); },
          c10::Device(c10::kCPU)),
      /*allocator=*/nullptr, /*resizable=*/false));
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(owning), c10::DispatchKeySet(c10::DispatchKey::CPU), inner.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(inner.sizes(), inner.strides(),
                                                      inner.storage_offset());
  return result;
}

at::Tensor device_alias(const at::Tensor& tensor, c10::DeviceIndex device) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == c10::kStrided,
              "device_alias takes a dense tensor on the CPU; got one on ", tensor.device());
  const c10::StorageImpl* host = tensor.storage().unsafeGetStorageImpl();
  TORCH_CHECK(tensor.numel() == 0 || anvilHostIsPinned(host->data()) != 0,
              "device_alias takes a tensor in pinned memory: make it with pin_memory=True, or call "
              "its pin_memory().");
  const c10::Device on(kAnvil, device);
  c10::Storage shared(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(host->nbytes()),
      at::DataPtr(
          const_cast<void*>(host->data()), new c10::Storage(tensor.storage()),
          [](void* context) { delete static_cast<c10::Storage*>(context); }, on),
      /*allocator=*/nullptr, /*resizable=*/false));
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                      tensor.storage_offset());
  return result;
}

at::Tensor staged(const at::Tensor& tensor) {
  at::Tensor copy =
      at::_ops::clone::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), tensor, std::nullopt);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

at::Tensor device_tensor(at::Tensor host, c10::Storage storage) {
  c10::TensorImpl* impl = host.unsafeGetTensorImpl();
  const c10::Device device = storage.device();
  // A result nobody else holds becomes the device tensor itself. Views of an alias must not escape
  // like that: they lack the keys that every tensor gets when it is made, autocast's among them.
  if (host.use_count() == 1 && impl->key_set().has(c10::DispatchKey::AutocastCPU)) {
    impl->set_storage_keep_dtype(std::move(storage));
    impl->_change_backend_component_keys(device);
    return host;
  }
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | (impl->key_set() & kLazyBits),
      impl->dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(),
                                                      impl->storage_offset());
  return result;
}

void follow_alias(const at::Tensor& tensor, const at::Tensor& alias) {
  c10::TensorImpl* device = tensor.unsafeGetTensorImpl();
  c10::TensorImpl* host = alias.unsafeGetTensorImpl();
  follow_twin(*device->unsafe_storage().unsafeGetStorageImpl(), share(host->unsafe_storage()));
  if (device->sizes() != host->sizes() || device->strides() != host->strides() ||
      device->storage_offset() != host->storage_offset()) {
    device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
  }
}

}  // namespace anvil
