// SPDX-License-Identifier: Apache-2.0
#include "core/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "core/allocator.h"
#include "core/device.h"
#include "core/generator.h"
#include "core/host_pool.h"
#include "core/pinned.h"
#include "core/storage.h"

namespace anvil {
namespace {

struct AnvilHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return deviceCount() > 0; }

  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override {
    return anvilIsInitialized() != 0;
  }

  void init() const override { device_count(); }

  c10::DeviceIndex deviceCount() const override { return device_count_or_zero(); }

  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }

  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = current_device();
    if (device != previous) set_device(device);
    return previous;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? c10::DeviceIndex(-1) : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<AnvilGenerator>(device < 0 ? current_device() : device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    int device = 0;
    check(anvilPointerGetDevice(&device, data));
    return {kAnvil, static_cast<c10::DeviceIndex>(device)};
  }

  bool isPinnedPtr(const void* data) const override { return anvilHostIsPinned(data) != 0; }

  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_backend() {
  static const bool registered = [] {
    install_host_pool();
    c10::SetAllocator(kAnvil, device_allocator());
    at::setHostAllocator(kAnvil, pinned_allocator());
    at::RegisterPrivateUse1HooksInterface(new AnvilHooks);  // PyTorch keeps the pointer for good
    return true;
  }();
  (void)registered;
}

}  // namespace anvil
