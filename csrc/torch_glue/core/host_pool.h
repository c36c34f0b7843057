// SPDX-License-Identifier: Apache-2.0
// The CPU allocator that draws from the device's pools while a CPU kernel runs on the device's
// behalf.
//
// Outputs and scratch of a fallback op are allocated by CPU kernels. Routing those allocations into
// the device's pool keeps the hard limit, the tags and the peak that sizes the KV cache honest, and
// saves the system allocator's cost.
#pragma once

#include <c10/core/Allocator.h>

namespace anvil {

// Replaces torch's CPU allocator once; outside a HostPoolScope it forwards to the one it replaced.
void install_host_pool();

// The replacement; valid after install_host_pool().
c10::Allocator* host_pool();

// Memory of the device as a CPU DataPtr.
at::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device, bool zeroed);

// While alive, this thread's CPU allocations come from `device`.
class HostPoolScope {
 public:
  explicit HostPoolScope(c10::DeviceIndex device) : previous_(current_) { current_ = device; }
  ~HostPoolScope() { current_ = previous_; }
  HostPoolScope(const HostPoolScope&) = delete;
  HostPoolScope& operator=(const HostPoolScope&) = delete;

  static c10::DeviceIndex current() { return current_; }

 private:
  static inline thread_local c10::DeviceIndex current_ = -1;
  c10::DeviceIndex previous_;
};

}  // namespace anvil
