// SPDX-License-Identifier: Apache-2.0
// The CPU allocator that draws from the device's pools while a CPU kernel runs on the device's
// behalf.
//
// Outputs and scratch of a fallback op are allocated by CPU kernels. Routing those allocations into
// the device's pools keeps the hard limit, the tags and the peak that sizes the KV cache honest,
// and saves the system allocator's cost. It also lets a command that runs later, or again and again
// in a graph, find its memory in places that were chosen when it was submitted.
#pragma once

#include <c10/core/Allocator.h>

#include <vector>

#include "core/device.h"

namespace anvil {

// Replaces torch's CPU allocator once; outside a HostPoolScope it forwards to the one it replaced.
void install_host_pool();

// The replacement; valid after install_host_pool().
c10::Allocator* host_pool();

// One step of a kernel's use of memory: an allocation, or the end of an earlier one.
struct MemoryStep {
  int32_t allocation;  // numbered from 0 in the order in which they are made
  bool frees;
};

// What a kernel allocates, in order.
struct MemoryTrace {
  std::vector<size_t> bytes;  // by allocation
  std::vector<MemoryStep> steps;
  std::vector<void*> addresses;  // by allocation; while it is being written only
};

// Places for the allocations of one run of a kernel that was traced before. As soon as the kernel
// departs from the trace the rest comes from the device's pools.
struct PlannedMemory {
  const MemoryTrace* trace;  // null: places are matched by size alone, each once
  void* const* places;       // by allocation; null where there is none
  const size_t* bytes;       // by place
  size_t count;
  size_t next_step = 0;
  bool on_plan = true;
  uint64_t used = 0;  // by place, where matched by size
};

// While alive, this thread's CPU allocations come from the device.
class HostPoolScope {
 public:
  // In the order of `stream`, whose queue is empty and which the calling thread submits to; noted
  // in `trace` unless it is null.
  HostPoolScope(anvilStream_t stream, MemoryTrace* trace);
  // Inside a command: from the planned places, and what is not planned for use at once.
  HostPoolScope(c10::DeviceIndex device, PlannedMemory* plan, MemoryTrace* trace);
  ~HostPoolScope();
  HostPoolScope(const HostPoolScope&) = delete;
  HostPoolScope& operator=(const HostPoolScope&) = delete;

  // Takes over the block behind memory that was allocated in a scope, and says for which stream;
  // null for memory of another kind, which `data` keeps.
  static anvilBlock_t take_block(at::DataPtr& data, anvilStream_t* stream);

  struct State {
    c10::DeviceIndex device = -1;
    anvilStream_t stream = nullptr;
    PlannedMemory* plan = nullptr;
    MemoryTrace* trace = nullptr;
  };

 private:
  const State previous_;
};

}  // namespace anvil
