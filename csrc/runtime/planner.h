// SPDX-License-Identifier: Apache-2.0
// Cuts the host into devices. One pure function of what the host has (topology.h) and what the
// user asked for (configuration.h), so that every case can be tested as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "error.h"
#include "topology.h"

namespace anvil {

struct PlanRequest {
  int device_count = 1;                   // ANVIL_DEVICES
  std::optional<uint64_t> device_memory;  // ANVIL_DEVICE_MEMORY, bytes for each device
  std::vector<int> visible;               // ANVIL_VISIBLE_DEVICES, in order; empty: all
  bool share_cores = false;               // ANVIL_SHARE_CORES
  int host_cores = 0;                     // ANVIL_HOST_CORES
};

struct DevicePlan {
  int physical_index = 0;
  std::vector<int> cores;  // logical CPUs, ascending, one for each physical core
  int numa_node = 0;       // -1 when the cores are on several nodes
  uint64_t memory = 0;     // hard limit, bytes
};

// Rules
//   * Cores: one logical CPU for each physical core of the process's CPU set; a cgroup's CPU quota
//     bounds their number (rounded down, at least one).
//   * host_cores of them belong to no device: the last ones of the nodes that have most.
//   * With at least as many devices as NUMA nodes, no device straddles nodes, and a node's cores
//     are split evenly among its devices. With fewer, each device gets whole neighbouring nodes.
//   * More devices than cores only with share_cores: each has one core then, in turn.
//   * Memory, unless asked for: an even share of what the process can have now (host, cgroup and
//     NUMA nodes, less headroom), at most the device's share of its own nodes.
// The error names the variable that cannot be met, the figures, and the remedy.
Result<std::vector<DevicePlan>> PlanDevices(const Host& host, const PlanRequest& request);

// Bytes the process can still take: the least of what the host and each control group leave.
uint64_t AvailableMemory(const HostMemory& memory);

}  // namespace anvil
