// SPDX-License-Identifier: Apache-2.0
#include "planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "units.h"

namespace anvil {
namespace {

// Limits are whole mappings of the allocator, and less than a few of them is no device.
constexpr uint64_t kMemoryGranule = 2 * kMiB;
constexpr uint64_t kLeastMemory = 16 * kMiB;

using CoresByNode = std::map<int, std::vector<int>>;

// One logical CPU for each physical core that the process may run on.
CoresByNode UsableCores(const Host& host) {
  CoresByNode cores;
  std::set<int> seen;
  for (int id : host.allowed_cpus) {
    const auto cpu = std::find_if(host.cpus.begin(), host.cpus.end(),
                                  [id](const LogicalCpu& c) { return c.id == id; });
    // A CPU the process may run on counts even where the kernel hides its topology.
    const LogicalCpu known = cpu != host.cpus.end() ? *cpu : LogicalCpu{id, id, 0};
    if (seen.insert(known.core).second) cores[known.node].push_back(id);
  }
  return cores;
}

size_t CountCores(const CoresByNode& cores) {
  size_t count = 0;
  for (const auto& [node, ids] : cores) count += ids.size();
  return count;
}

// Takes cores that stay the host's from the nodes that have most, and from the last of these.
void LeaveToHost(CoresByNode& cores, int count) {
  for (; count > 0; --count) {
    auto largest = cores.begin();
    for (auto node = cores.begin(); node != cores.end(); ++node) {
      if (node->second.size() >= largest->second.size()) largest = node;
    }
    largest->second.pop_back();
    if (largest->second.empty()) cores.erase(largest);
  }
}

// The cores of each device before the quota: (cores in order of preference) for each device.
std::vector<std::vector<int>> SplitNodes(const CoresByNode& cores, int count) {
  std::vector<std::vector<int>> devices;
  const int nodes = static_cast<int>(cores.size());
  if (count < nodes) {
    for (int device = 0; device < count; ++device) {
      std::vector<std::vector<int>> group;
      auto node = std::next(cores.begin(), device * nodes / count);
      const auto end = std::next(cores.begin(), (device + 1) * nodes / count);
      for (; node != end; ++node) group.push_back(node->second);
      // The largest node first: where a quota takes cores away, those that are left share a node.
      std::stable_sort(group.begin(), group.end(),
                       [](const auto& a, const auto& b) { return a.size() > b.size(); });
      std::vector<int>& ids = devices.emplace_back();
      for (const auto& part : group) ids.insert(ids.end(), part.begin(), part.end());
    }
    return devices;
  }
  // One device for each node, then the next one always where a device gets the most cores.
  std::map<int, size_t> share;
  for (const auto& [node, ids] : cores) share[node] = 1;
  for (int extra = nodes; extra < count; ++extra) {
    int best = share.begin()->first;
    for (const auto& [node, ids] : cores) {
      if (ids.size() * (share[best] + 1) > cores.at(best).size() * (share[node] + 1)) best = node;
    }
    ++share[best];
  }
  for (const auto& [node, ids] : cores) {
    const size_t parts = share[node];
    for (size_t part = 0; part < parts; ++part) {
      devices.emplace_back(ids.begin() + static_cast<long>(ids.size() * part / parts),
                           ids.begin() + static_cast<long>(ids.size() * (part + 1) / parts));
    }
  }
  return devices;
}

// A core for each of more devices than there are cores.
std::vector<std::vector<int>> ShareCores(const CoresByNode& cores, size_t usable, size_t count) {
  std::vector<int> ids;
  for (const auto& [node, of_node] : cores) ids.insert(ids.end(), of_node.begin(), of_node.end());
  std::vector<std::vector<int>> devices;
  for (size_t device = 0; device < count; ++device) devices.push_back({ids[device % usable]});
  return devices;
}

// Takes cores from the devices that have most until the quota holds.
void TrimToQuota(std::vector<std::vector<int>>& devices, size_t quota) {
  size_t total = 0;
  for (const auto& cores : devices) total += cores.size();
  for (; total > quota; --total) {
    auto largest = devices.begin();
    for (auto device = devices.begin(); device != devices.end(); ++device) {
      if (device->size() >= largest->size()) largest = device;
    }
    largest->pop_back();
  }
}

std::set<int> NodesOf(const CoresByNode& cores, const std::vector<int>& device) {
  std::set<int> nodes;
  for (const auto& [node, ids] : cores) {
    for (int id : device) {
      if (std::find(ids.begin(), ids.end(), id) != ids.end()) nodes.insert(node);
    }
  }
  return nodes;
}

// Available bytes of each node that this process may use. The nodes' figures leave out memory that
// a balloon driver holds and gives back on demand, which the host's include: scaled to agree.
std::map<int, double> NodeMemory(const Host& host) {
  double total = 0;
  for (const NumaNode& node : host.nodes) total += static_cast<double>(node.total);
  std::map<int, double> available;
  if (total == 0) return available;
  const double scale = std::max(1.0, static_cast<double>(host.memory.total) / total);
  for (const NumaNode& node : host.nodes) {
    if (node.allowed) available[node.id] = static_cast<double>(node.available) * scale;
  }
  return available;
}

uint64_t MemoryLimit(const HostMemory& memory) {
  uint64_t limit = memory.total;
  for (const CgroupMemory& group : memory.cgroups) limit = std::min(limit, group.limit);
  return limit;
}

// The default limit of each device.
std::vector<uint64_t> ShareMemory(const Host& host, const std::vector<std::set<int>>& nodes_of) {
  const std::map<int, double> node_memory = NodeMemory(host);
  double available = static_cast<double>(AvailableMemory(host.memory));
  double on_nodes = 0;
  for (const auto& [node, bytes] : node_memory) on_nodes += bytes;
  if (on_nodes > 0) available = std::min(available, on_nodes);
  // Headroom: the process's own heap, other processes, and what the kernel needs to stay
  // responsive.
  const double headroom =
      std::min(std::max(static_cast<double>(kGiB), 0.05 * available), available / 2);
  const double usable = available - headroom;

  std::map<int, int> sharers;
  for (const auto& nodes : nodes_of) {
    for (int node : nodes) ++sharers[node];
  }
  std::vector<uint64_t> shares;
  for (const auto& nodes : nodes_of) {
    double share = usable / static_cast<double>(nodes_of.size());
    double local = 0;
    for (int node : nodes) {
      const auto bytes = node_memory.find(node);
      if (bytes != node_memory.end()) local += bytes->second / sharers[node];
    }
    // Nodes without memory of their own (or that do not tell) set no bound.
    if (local > 0) share = std::min(share, local * (usable / available));
    shares.push_back(static_cast<uint64_t>(share) / kMemoryGranule * kMemoryGranule);
  }
  return shares;
}

std::string TooManyDevices(const Host& host, const PlanRequest& request, size_t physical,
                           size_t usable) {
  const size_t left = static_cast<size_t>(request.host_cores);
  std::string words = "ANVIL_DEVICES=" + std::to_string(request.device_count) + " asks for " +
                      std::to_string(request.device_count) + " devices, but only " +
                      std::to_string(usable) + (usable == 1 ? " core is" : " cores are") +
                      " usable: this process may run on " +
                      std::to_string(host.allowed_cpus.size()) + " logical CPUs, which are " +
                      std::to_string(physical) + " physical cores";
  if (left > 0)
    words += ", of which ANVIL_HOST_CORES leaves " + std::to_string(left) + " to the host";
  if (usable + left < physical) {
    char quota[64];
    std::snprintf(quota, sizeof(quota), ", and its cgroup's quota is %g CPUs", *host.cpu_quota);
    words += quota;
  }
  return words + ". Set ANVIL_DEVICES to at most " + std::to_string(usable) +
         ", give the process more CPUs, or let devices share cores with ANVIL_SHARE_CORES=1.";
}

}  // namespace

uint64_t AvailableMemory(const HostMemory& memory) {
  uint64_t available = memory.available;
  for (const CgroupMemory& group : memory.cgroups) {
    const uint64_t held = group.usage - std::min(group.usage, group.reclaimable);
    available = std::min(available, group.limit - std::min(group.limit, held));
  }
  return available;
}

Result<std::vector<DevicePlan>> PlanDevices(const Host& host, const PlanRequest& request) {
  using Plans = Result<std::vector<DevicePlan>>;
  CoresByNode cores = UsableCores(host);
  const size_t physical = CountCores(cores);
  if (physical == 0) return Plans::Error("The operating system reports no CPU for this process.");
  size_t usable = physical;
  if (host.cpu_quota) {
    usable = std::min(usable, static_cast<size_t>(std::max(1.0, std::floor(*host.cpu_quota))));
  }
  const size_t left = static_cast<size_t>(request.host_cores);
  if (left > 0 && left >= usable) {
    return Plans::Error("ANVIL_HOST_CORES=" + std::to_string(left) +
                        " leaves no core to a device: " + std::to_string(usable) +
                        (usable == 1 ? " is" : " are") + " usable. Set it to at most " +
                        std::to_string(usable - 1) + ".");
  }
  LeaveToHost(cores, request.host_cores);
  usable -= left;
  const size_t count = static_cast<size_t>(request.device_count);
  std::vector<std::vector<int>> core_sets;
  if (count <= usable) {
    core_sets = SplitNodes(cores, request.device_count);
    TrimToQuota(core_sets, usable);
  } else if (request.share_cores) {
    core_sets = ShareCores(cores, usable, count);
  } else {
    return Plans::Error(TooManyDevices(host, request, physical, usable));
  }
  std::vector<std::set<int>> nodes_of;
  for (const auto& device : core_sets) nodes_of.push_back(NodesOf(cores, device));

  std::vector<uint64_t> memory;
  if (request.device_memory) {
    const uint64_t limit = MemoryLimit(host.memory);
    if (*request.device_memory > limit / count) {
      return Plans::Error(
          "ANVIL_DEVICE_MEMORY asks for " + FormatBytes(*request.device_memory) + " for each of " +
          std::to_string(count) + (count == 1 ? " device" : " devices") + ", but this host has " +
          FormatBytes(limit) + (limit < host.memory.total ? " (its cgroup's limit)" : "") +
          ". Set it to at most " + FormatBytes(limit / count) +
          ", or leave it unset for a share of what is available.");
    }
    memory.assign(count, *request.device_memory);
  } else {
    memory = ShareMemory(host, nodes_of);
    const uint64_t least = *std::min_element(memory.begin(), memory.end());
    if (least < kLeastMemory) {
      return Plans::Error("Only " + FormatBytes(AvailableMemory(host.memory)) +
                          " of memory is available to this process, too little for " +
                          std::to_string(count) + (count == 1 ? " device" : " devices") +
                          ". Free memory, raise the cgroup's limit, or set ANVIL_DEVICES or "
                          "ANVIL_DEVICE_MEMORY lower.");
    }
  }

  std::vector<DevicePlan> physical_devices;
  for (size_t index = 0; index < count; ++index) {
    DevicePlan plan;
    plan.physical_index = static_cast<int>(index);
    plan.cores = core_sets[index];
    std::sort(plan.cores.begin(), plan.cores.end());
    plan.numa_node = nodes_of[index].size() == 1 ? *nodes_of[index].begin() : -1;
    plan.memory = memory[index];
    physical_devices.push_back(std::move(plan));
  }
  if (request.visible.empty()) return {std::move(physical_devices), ""};

  Plans plans;
  for (int index : request.visible) {
    if (index < 0 || static_cast<size_t>(index) >= count) {
      return Plans::Error("ANVIL_VISIBLE_DEVICES names device " + std::to_string(index) + ", but " +
                          (count == 1 ? "there is one device, 0"
                                      : "the devices are 0 to " + std::to_string(count - 1)) +
                          ". Name existing devices, or raise ANVIL_DEVICES.");
    }
    plans.value.push_back(physical_devices[static_cast<size_t>(index)]);
  }
  return plans;
}

}  // namespace anvil
