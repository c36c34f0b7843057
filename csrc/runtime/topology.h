// SPDX-License-Identifier: Apache-2.0
// What the host has and what this process may use of it: facts only, no decisions (planner.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cgroup.h"

namespace anvil {

struct LogicalCpu {
  int id = 0;
  int core = 0;  // the same for all SMT siblings of a physical core
  int node = 0;  // NUMA node
};

struct NumaNode {
  int id = 0;
  uint64_t total = 0;      // bytes
  uint64_t available = 0;  // free or reclaimable, bytes
  bool allowed = true;     // this process may take memory from it
};

struct HostMemory {
  uint64_t total = 0;      // MemTotal
  uint64_t available = 0;  // MemAvailable
  std::vector<CgroupMemory> cgroups;
};

struct Host {
  std::vector<LogicalCpu> cpus;   // online, ascending
  std::vector<int> allowed_cpus;  // the process's affinity, ascending
  std::vector<NumaNode> nodes;    // ascending; empty when the kernel does not tell
  std::optional<double> cpu_quota;
  HostMemory memory;
  std::string cpu_model;
};

// Reads the files below `root` ("" for this machine); `allowed_cpus` comes from the caller, since
// the kernel tells it through a system call. What cannot be read gets the plainest meaning: no
// SMT, one node, no limit.
Host ReadHost(const std::string& root, std::vector<int> allowed_cpus);

// The part of ReadHost that changes while the process runs.
HostMemory ReadHostMemory(const std::string& root, const CgroupDirectories& cgroups);

// The calling thread's affinity; empty if the kernel refuses to tell.
std::vector<int> ReadAffinity();

// Reads "0-3,8,10-11"; ascending, without duplicates.
std::vector<int> ParseCpuList(const std::string& text);

}  // namespace anvil
