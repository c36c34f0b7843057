// SPDX-License-Identifier: Apache-2.0
#include "topology.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <map>
#include <set>

#include "text_file.h"
#include "units.h"

namespace anvil {
namespace {

// The entries of a meminfo file in bytes: "MemTotal:  123 kB", also with "Node 0 " in front.
std::map<std::string, uint64_t> ReadMeminfo(const std::string& path) {
  std::map<std::string, uint64_t> entries;
  for (const std::string& line : Split(ReadFile(path).value_or(""), '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::vector<std::string> key = Words(line.substr(0, colon));
    const std::vector<std::string> value = Words(line.substr(colon + 1));
    if (key.empty() || value.empty()) continue;
    entries[key.back()] = static_cast<uint64_t>(ParseInteger(value[0]).value_or(0)) * kKiB;
  }
  return entries;
}

// The value of "key : value" or "key:\tvalue" in a file of such lines.
std::optional<std::string> ReadField(const std::string& path, const std::string& key) {
  for (const std::string& line : Split(ReadFile(path).value_or(""), '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || Trim(line.substr(0, colon)) != key) continue;
    return std::string(Trim(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

std::vector<NumaNode> ReadNodes(const std::string& root) {
  const std::string directory = root + "/sys/devices/system/node";
  const auto allowed_text = ReadField(root + "/proc/self/status", "Mems_allowed_list");
  const std::vector<int> allowed = ParseCpuList(allowed_text.value_or(""));
  std::vector<NumaNode> nodes;
  for (int id : ParseCpuList(ReadFile(directory + "/online").value_or(""))) {
    auto meminfo = ReadMeminfo(directory + "/node" + std::to_string(id) + "/meminfo");
    NumaNode node;
    node.id = id;
    node.total = meminfo["MemTotal"];
    node.available = std::min(node.total, meminfo["MemFree"] + meminfo["Active(file)"] +
                                              meminfo["Inactive(file)"] + meminfo["SReclaimable"]);
    node.allowed = !allowed_text || std::find(allowed.begin(), allowed.end(), id) != allowed.end();
    nodes.push_back(node);
  }
  return nodes;
}

std::vector<LogicalCpu> ReadCpus(const std::string& root, const std::vector<NumaNode>& nodes) {
  std::map<int, int> node_of;
  for (const NumaNode& node : nodes) {
    const std::string path =
        root + "/sys/devices/system/node/node" + std::to_string(node.id) + "/cpulist";
    for (int cpu : ParseCpuList(ReadFile(path).value_or(""))) node_of[cpu] = node.id;
  }
  std::vector<LogicalCpu> cpus;
  const std::string directory = root + "/sys/devices/system/cpu";
  for (int id : ParseCpuList(ReadFile(directory + "/online").value_or(""))) {
    const std::string topology = directory + "/cpu" + std::to_string(id) + "/topology";
    auto siblings = ReadFile(topology + "/core_cpus_list");
    if (!siblings) siblings = ReadFile(topology + "/thread_siblings_list");  // before Linux 5.3
    // core_id repeats across packages; the first sibling names the core on the whole machine.
    const std::vector<int> ids = ParseCpuList(siblings.value_or(""));
    cpus.push_back({id, ids.empty() ? id : ids.front(), node_of.contains(id) ? node_of[id] : 0});
  }
  return cpus;
}

std::string ReadCpuModel(const std::string& root) {
  const auto model = ReadField(root + "/proc/cpuinfo", "model name");
  if (model && !model->empty()) return *model;
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown CPU";
}

}  // namespace

std::vector<int> ParseCpuList(const std::string& text) {
  std::set<int> ids;
  for (const std::string& part : Split(std::string(Trim(text)), ',')) {
    const size_t dash = part.find('-');
    const auto first = ParseInteger(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : ParseInteger(part.substr(dash + 1));
    if (!first || !last) continue;
    for (int64_t id = *first; id <= *last; ++id) ids.insert(static_cast<int>(id));
  }
  return {ids.begin(), ids.end()};
}

std::vector<int> ReadAffinity() {
  // The kernel's mask may be wider than cpu_set_t: grow until it fits.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(size, set);
    std::vector<int> ids;
    const bool known = sched_getaffinity(0, size, set) == 0;
    for (int id = 0; known && id < capacity; ++id) {
      if (CPU_ISSET_S(id, size, set)) ids.push_back(id);
    }
    CPU_FREE(set);
    if (known) return ids;
  }
  return {};
}

HostMemory ReadHostMemory(const std::string& root, const CgroupDirectories& cgroups) {
  auto meminfo = ReadMeminfo(root + "/proc/meminfo");
  HostMemory memory;
  memory.total = meminfo["MemTotal"];
  memory.available = meminfo.contains("MemAvailable") ? meminfo["MemAvailable"]
                                                      : meminfo["MemFree"] + meminfo["Cached"];
  memory.cgroups = ReadMemoryLimits(cgroups);
  return memory;
}

Host ReadHost(const std::string& root, std::vector<int> allowed_cpus) {
  Host host;
  host.nodes = ReadNodes(root);
  host.cpus = ReadCpus(root, host.nodes);
  host.allowed_cpus = std::move(allowed_cpus);
  const CgroupDirectories cgroups = FindCgroups(root);
  host.cpu_quota = ReadCpuQuota(cgroups);
  host.memory = ReadHostMemory(root, cgroups);
  host.cpu_model = ReadCpuModel(root);
  return host;
}

}  // namespace anvil
