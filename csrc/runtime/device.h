// SPDX-License-Identifier: Apache-2.0
// The devices of this process, made at the first call that needs one.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "configuration.h"
#include "error.h"
#include "executor.h"
#include "planner.h"
#include "stream.h"
#include "worker_pool.h"

namespace anvil {

struct Device {
  // `preferred_node`: where its memory should come from; -1: anywhere.
  Device(int index, const DevicePlan& plan, int preferred_node, std::string name,
         const Configuration& configuration);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const int index;  // visible
  const DevicePlan plan;
  const std::string name;
  const Configuration& configuration;  // of the process
  DeviceAllocator allocator;
  WorkerPool workers;
  Executor executor;
  StreamList streams;
};

// All devices, never destroyed. Fails in a forked child of a process that used them, and with the
// same configuration error at every call.
anvilError_t FindDevices(const std::vector<Device*>** devices);

// One device by its visible index, to describe it.
anvilError_t FindDevice(int index, Device** device);

// The same, to use them: from here on they do not survive a fork.
anvilError_t GetDevices(const std::vector<Device*>** devices);
anvilError_t GetDevice(int index, Device** device);

// The error for a null argument of an entry point.
anvilError_t FailNull(const char* function, const char* argument);

}  // namespace anvil
