// SPDX-License-Identifier: Apache-2.0
// Devices as PyTorch counts them: indices of c10::DeviceType::PrivateUse1.
#pragma once

#include <c10/core/Device.h>

#include "core/error.h"

namespace anvil {

constexpr c10::DeviceType kAnvil = c10::DeviceType::PrivateUse1;

inline c10::DeviceIndex device_count() {
  int count = 0;
  check(anvilGetDeviceCount(&count));
  return static_cast<c10::DeviceIndex>(count);
}

// For callers that may not see a failure: a broken configuration counts as no device, and is
// reported by the first call that needs one.
inline c10::DeviceIndex device_count_or_zero() noexcept {
  int count = 0;
  return anvilGetDeviceCount(&count) == ANVIL_SUCCESS ? static_cast<c10::DeviceIndex>(count) : 0;
}

inline c10::DeviceIndex current_device() {
  int device = 0;
  check(anvilGetDevice(&device));
  return static_cast<c10::DeviceIndex>(device);
}

inline void set_device(c10::DeviceIndex index) { check(anvilSetDevice(index)); }

// The device that an optional `device=` argument means; an index of -1 is the current device.
inline c10::Device resolve_device(std::optional<c10::Device> device) {
  if (!device.has_value() || !device->has_index()) return {kAnvil, current_device()};
  TORCH_CHECK(device->index() < device_count(), "anvil:", static_cast<int>(device->index()),
              " does not exist: this process sees ", static_cast<int>(device_count()),
              " anvil device(s). ANVIL_DEVICES sets how many the host is cut into.");
  return *device;
}

}  // namespace anvil
