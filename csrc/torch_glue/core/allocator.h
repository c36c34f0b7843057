// SPDX-License-Identifier: Apache-2.0
// The device's allocators as PyTorch knows them: c10::DeviceAllocator and at::HostAllocator (pinned
// memory).
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace anvil {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();

}  // namespace anvil
