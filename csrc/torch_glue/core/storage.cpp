// SPDX-License-Identifier: Apache-2.0
#include "core/storage.h"

#include "core/allocator.h"
#include "core/host_pool.h"
#include "core/stream.h"

namespace anvil {
namespace {

using HostStorage = c10::intrusive_ptr<c10::StorageImpl>;

// The context of a device DataPtr.
struct DeviceMemory {
  HostStorage twin;
  anvilBlock_t block;    // null: `foreign` holds the memory, or there is none
  anvilStream_t stream;  // in whose order the block is freed
  at::DataPtr foreign;
};

void release_memory(void* context) {
  auto* memory = static_cast<DeviceMemory*>(context);
  anvilFree(memory->block);
  delete memory;
}

at::DataPtr view_of(void* address) {
  return {address, nullptr, &c10::detail::deleteNothing, c10::Device(c10::kCPU)};
}

HostStorage make_twin(void* address, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               static_cast<int64_t>(bytes), view_of(address),
                                               host_pool(), /*resizable=*/true);
}

at::DataPtr data_ptr_over(HostStorage twin, anvilBlock_t block, anvilStream_t stream,
                          at::DataPtr foreign, c10::Device device) {
  void* address = twin->_mutable_data_ptr_no_checks().mutable_get();
  auto* memory = new DeviceMemory{std::move(twin), block, stream, std::move(foreign)};
  return {address, memory, &release_memory, device};
}

// Moves the memory that a CPU storage owns to the device; the storage keeps the address.
at::DataPtr take_memory(HostStorage host, c10::Device device) {
  void* address = host->_mutable_data_ptr_no_checks().mutable_get();
  at::DataPtr owned = host->set_data_ptr(view_of(address));
  anvilStream_t stream = nullptr;
  anvilBlock_t block = HostPoolScope::take_block(owned, &stream);
  return data_ptr_over(std::move(host), block, stream, std::move(owned), device);
}

DeviceMemory* memory_of(const at::DataPtr& data) {
  const bool ours = data.get_deleter() == &release_memory;
  return ours ? static_cast<DeviceMemory*>(data.get_context()) : nullptr;
}

void release_foreign(void* context) { delete static_cast<c10::Storage*>(context); }

}  // namespace

at::DataPtr new_data_ptr(size_t bytes, c10::DeviceIndex device, bool zeroed) {
  anvilStream_t stream = current_stream_handle(device);
  anvilBlock_t block = nullptr;
  void* address = nullptr;
  check(anvilMallocAsync(&block, &address, bytes, stream,
                         zeroed ? ANVIL_ALLOC_ZEROED : ANVIL_ALLOC_DEFAULT));
  return data_ptr_over(make_twin(address, bytes), block, stream, {}, c10::Device(kAnvil, device));
}

HostStorage new_storage(size_t bytes, c10::DeviceIndex device, bool zeroed) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      new_data_ptr(bytes, device, zeroed), device_allocator(), /*resizable=*/true);
}

HostStorage storage_over(anvilBlock_t block, void* address, size_t bytes, anvilStream_t stream,
                         c10::DeviceIndex device) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      data_ptr_over(make_twin(address, bytes), block, stream, {}, c10::Device(kAnvil, device)),
      device_allocator(), /*resizable=*/true);
}

HostStorage host_twin(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (const DeviceMemory* memory = memory_of(impl._mutable_data_ptr_no_checks())) {
    return memory->twin;
  }
  // A copy-on-write storage becomes one of ours here; what remains is memory from elsewhere.
  at::DataPtr& own = impl.mutable_data_ptr();
  if (const DeviceMemory* memory = memory_of(own)) return memory->twin;
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
      c10::StorageImpl::use_byte_size_t(), bytes, take_memory(std::move(host), device),
      device_allocator(), resizable));
}

void follow_twin(c10::StorageImpl& storage, const HostStorage& twin) {
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get() == twin->_mutable_data_ptr_no_checks().get() && storage.nbytes() == twin->nbytes())
    return;
  TORCH_CHECK(memory_of(data) != nullptr,
              "An operation resized a tensor over memory that anvil does not own.");
  const c10::Device device = data.device();
  const bool moved = twin->_mutable_data_ptr_no_checks().get() != data.get();
  if (moved) storage.set_data_ptr_noswap(take_memory(twin, device));
  storage.set_nbytes(twin->nbytes());
}

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex device = storage.device().index();
  at::DataPtr fresh = new_data_ptr(bytes, device);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    anvilStream_t stream = current_stream_handle(device);
    const LaunchSection section(stream);
    use_on_stream(storage, stream);
    check(anvilMemcpyAsync(fresh.mutable_get(), storage.data(), kept, stream));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

anvilBlock_t use_on_stream(const at::DataPtr& data, anvilStream_t stream) {
  const DeviceMemory* memory = memory_of(data);
  if (memory == nullptr || memory->block == nullptr) return nullptr;
  if (C10_UNLIKELY(memory->stream != stream)) check(anvilBlockRecordStream(memory->block, stream));
  return memory->block;
}

}  // namespace anvil
