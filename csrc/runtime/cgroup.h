// SPDX-License-Identifier: Apache-2.0
// What the process's control groups leave it, read from a file tree (versions 1 and 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace anvil {

// One control group with a memory limit, on the path from the process's own group to the root.
struct CgroupMemory {
  uint64_t limit = 0;
  uint64_t usage = 0;
  uint64_t reclaimable = 0;  // the part of usage that is page cache and the like
};

struct CgroupLimits {
  std::optional<double> cpu_quota;   // in CPUs: 1.5
  std::vector<CgroupMemory> memory;  // every level that has a limit
};

// Where the files of the process's groups are, from its own group to the root.
struct CgroupDirectories {
  struct Directory {
    std::string path;
    bool unified = false;  // version 2
  };
  std::vector<Directory> cpu, memory;
};

// Reads <root>/proc/self/{mountinfo,cgroup}.
CgroupDirectories FindCgroups(const std::string& root);

// Reads the groups' files. Whatever is missing or says "no limit" is left out.
std::optional<double> ReadCpuQuota(const CgroupDirectories& directories);
std::vector<CgroupMemory> ReadMemoryLimits(const CgroupDirectories& directories);

// All of that at once.
CgroupLimits ReadCgroupLimits(const std::string& root);

}  // namespace anvil
