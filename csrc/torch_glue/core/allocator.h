// SPDX-License-Identifier: Apache-2.0
// The device's allocator as PyTorch knows it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace anvil {

c10::DeviceAllocator* device_allocator();

}  // namespace anvil
