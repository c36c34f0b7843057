// SPDX-License-Identifier: Apache-2.0
#include "core/storage.h"

#include <cstring>

#include "core/allocator.h"
#include "core/host_pool.h"

namespace anvil {
namespace {

using HostStorage = c10::intrusive_ptr<c10::StorageImpl>;

void release_twin(void* context) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
}

// DataPtr of the device that owns one reference to its twin.
at::DataPtr data_ptr_over(HostStorage twin, c10::Device device) {
  void* address = twin->_mutable_data_ptr_no_checks().mutable_get();
  return {address, twin.release(), &release_twin, device};
}

bool owns_twin(const at::DataPtr& data) {
  return data.get_context() != nullptr && data.get_deleter() == &release_twin;
}

void release_foreign(void* context) { delete static_cast<c10::Storage*>(context); }

}  // namespace

at::DataPtr new_data_ptr(size_t bytes, c10::DeviceIndex device, bool zeroed) {
  auto twin = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      allocate_block(bytes, device, zeroed), host_pool(), /*resizable=*/true);
  return data_ptr_over(std::move(twin), c10::Device(kAnvil, device));
}

HostStorage new_storage(size_t bytes, c10::DeviceIndex device, bool zeroed) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      new_data_ptr(bytes, device, zeroed), device_allocator(), /*resizable=*/true);
}

HostStorage host_twin(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  const at::DataPtr& data = impl._mutable_data_ptr_no_checks();
  if (C10_LIKELY(owns_twin(data))) {
    return HostStorage::reclaim_copy(static_cast<c10::StorageImpl*>(data.get_context()));
  }
  // A copy-on-write storage becomes one of ours here; what remains is memory from elsewhere.
  at::DataPtr& own = impl.mutable_data_ptr();
  if (owns_twin(own)) {
    return HostStorage::reclaim_copy(static_cast<c10::StorageImpl*>(own.get_context()));
  }
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(impl.nbytes()),
      at::DataPtr(own.mutable_get(), new c10::Storage(storage), &release_foreign,
                  c10::Device(c10::kCPU)),
      /*allocator=*/nullptr, /*resizable=*/false);
}

c10::Storage adopt_host_storage(HostStorage host, c10::Device device) {
  const auto bytes = static_cast<int64_t>(host->nbytes());
  const bool resizable = host->resizable();
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, data_ptr_over(std::move(host), device),
      device_allocator(), resizable));
}

void follow_twin(c10::StorageImpl& storage, const HostStorage& twin) {
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get() == twin->_mutable_data_ptr_no_checks().get() && storage.nbytes() == twin->nbytes())
    return;
  TORCH_CHECK(owns_twin(data),
              "An operation resized a tensor over memory that anvil does not own.");
  const c10::Device device = data.device();
  storage.set_data_ptr_noswap(data_ptr_over(twin, device));
  storage.set_nbytes(twin->nbytes());
}

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::Device device = storage.device();
  at::DataPtr fresh = new_data_ptr(bytes, device.index());
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) std::memcpy(fresh.mutable_get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

}  // namespace anvil
