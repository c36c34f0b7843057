// SPDX-License-Identifier: Apache-2.0
// The threads of a device, for kernels that run as its commands.
//
// Not PyTorch's: OpenMP's threads sleep between regions as soon as the process has more of them
// than the machine has cores, and each region then begins with a system call. Nor do the two meet:
// what runs on PyTorch's threads (an operator without a kernel here) is a command of its own.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "anvil/runtime.h"
#include "core/error.h"

namespace anvil {

inline int worker_count(c10::DeviceIndex device) { return anvilWorkerCount(device); }

// Calls body(begin, end) on ranges of at least `grain` that make up [0, count), on the device's
// workers and the calling thread, and returns when all have returned. What it throws on any of them
// arrives as a RuntimeError with the same words.
template <typename Body>
void on_workers(c10::DeviceIndex device, int64_t count, int64_t grain, const Body& body) {
  check(anvilParallelFor(
      device, count, grain,
      [](void* argument, int64_t begin, int64_t end, int) {
        (*static_cast<const Body*>(argument))(begin, end);
      },
      const_cast<Body*>(&body)));
}

}  // namespace anvil
