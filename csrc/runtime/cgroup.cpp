// SPDX-License-Identifier: Apache-2.0
#include "cgroup.h"

#include <algorithm>
#include <set>

#include "text_file.h"
#include "units.h"

namespace anvil {
namespace {

// Where a hierarchy is mounted, and which of its groups the mount point shows.
struct Mount {
  std::string mount_point;
  std::string group;
  bool unified = false;                  // version 2
  std::vector<std::string> controllers;  // version 1
};

// The process's group in one hierarchy.
struct Membership {
  std::vector<std::string> controllers;  // empty in the unified hierarchy
  std::string group;
};

std::vector<Mount> ReadMounts(const std::string& root) {
  std::vector<Mount> mounts;
  const auto text = ReadFile(root + "/proc/self/mountinfo");
  for (const std::string& line : Split(text.value_or(""), '\n')) {
    // "36 35 98:0 <group> <mount point> <options> [optional fields] - <type> <source> <super>"
    const std::vector<std::string> fields = Words(line);
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({fields[4], fields[3], type == "cgroup2", Split(dash[3], ',')});
  }
  return mounts;
}

std::vector<Membership> ReadMemberships(const std::string& root) {
  std::vector<Membership> memberships;
  const auto text = ReadFile(root + "/proc/self/cgroup");
  for (const std::string& line : Split(text.value_or(""), '\n')) {
    // "<id>:<controllers>:<group>"; the group may contain colons.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    memberships.push_back(
        {Split(line.substr(first + 1, second - first - 1), ','), line.substr(second + 1)});
  }
  return memberships;
}

bool Contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// The directories of the process's group and of every group above it that the mount shows.
std::vector<std::string> GroupDirectories(const std::string& root, const Mount& mount,
                                          const std::vector<Membership>& memberships,
                                          const std::string& controller) {
  std::string group;
  for (const Membership& membership : memberships) {
    const bool matches = mount.unified ? membership.controllers.empty()
                                       : Contains(membership.controllers, controller);
    if (matches) group = membership.group;
  }
  // A container often sees its own group at the mount point while /proc names the group's full
  // path: take off what the mount already stands for.
  if (mount.group != "/" && group.starts_with(mount.group)) group.erase(0, mount.group.size());
  while (group.ends_with('/')) group.pop_back();

  const std::string base = root + mount.mount_point;
  std::vector<std::string> directories;
  while (!group.empty()) {
    directories.push_back(base + (group.front() == '/' ? "" : "/") + group);
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
  directories.push_back(base);
  return directories;
}

std::optional<uint64_t> ReadAmount(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text) return std::nullopt;
  const auto amount = ParseInteger(*text);  // "max" is no number: no limit
  if (!amount || *amount < 0) return std::nullopt;
  return static_cast<uint64_t>(*amount);
}

uint64_t SumOfEntries(const std::string& path, const std::set<std::string>& names) {
  uint64_t sum = 0;
  for (const std::string& line : Split(ReadFile(path).value_or(""), '\n')) {
    const std::vector<std::string> words = Words(line);
    if (words.size() != 2 || !names.contains(words[0])) continue;
    sum += static_cast<uint64_t>(ParseInteger(words[1]).value_or(0));
  }
  return sum;
}

std::optional<double> ReadQuota(const std::string& directory, bool unified) {
  std::optional<int64_t> quota, period;
  if (unified) {
    const std::vector<std::string> words = Words(ReadFile(directory + "/cpu.max").value_or(""));
    if (words.size() != 2) return std::nullopt;
    quota = ParseInteger(words[0]);
    period = ParseInteger(words[1]);
  } else {
    quota = ParseInteger(ReadFile(directory + "/cpu.cfs_quota_us").value_or(""));
    period = ParseInteger(ReadFile(directory + "/cpu.cfs_period_us").value_or(""));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<CgroupMemory> ReadMemory(const std::string& directory, bool unified) {
  std::optional<uint64_t> limit;
  CgroupMemory memory;
  if (unified) {
    limit = ReadAmount(directory + "/memory.max");
    // Above "high" the kernel stalls the process until memory is reclaimed: as good as a limit.
    const auto high = ReadAmount(directory + "/memory.high");
    if (high) limit = std::min(limit.value_or(*high), *high);
    memory.usage = ReadAmount(directory + "/memory.current").value_or(0);
    memory.reclaimable = SumOfEntries(directory + "/memory.stat",
                                      {"active_file", "inactive_file", "slab_reclaimable"});
  } else {
    limit = ReadAmount(directory + "/memory.limit_in_bytes");
    // Version 1 writes "no limit" as the largest number of pages.
    if (limit && *limit >= uint64_t{1} << 62) limit.reset();
    memory.usage = ReadAmount(directory + "/memory.usage_in_bytes").value_or(0);
    memory.reclaimable =
        SumOfEntries(directory + "/memory.stat", {"total_active_file", "total_inactive_file"});
  }
  if (!limit) return std::nullopt;
  memory.limit = *limit;
  memory.reclaimable = std::min(memory.reclaimable, memory.usage);
  return memory;
}

}  // namespace

CgroupDirectories FindCgroups(const std::string& root) {
  CgroupDirectories found;
  const std::vector<Membership> memberships = ReadMemberships(root);
  for (const Mount& mount : ReadMounts(root)) {
    const auto add = [&](const char* controller,
                         std::vector<CgroupDirectories::Directory>* directories) {
      if (!mount.unified && !Contains(mount.controllers, controller)) return;
      for (const auto& path : GroupDirectories(root, mount, memberships, controller)) {
        directories->push_back({path, mount.unified});
      }
    };
    add("cpu", &found.cpu);
    add("memory", &found.memory);
  }
  return found;
}

std::optional<double> ReadCpuQuota(const CgroupDirectories& directories) {
  std::optional<double> least;
  for (const auto& directory : directories.cpu) {
    const auto quota = ReadQuota(directory.path, directory.unified);
    if (quota) least = std::min(least.value_or(*quota), *quota);
  }
  return least;
}

std::vector<CgroupMemory> ReadMemoryLimits(const CgroupDirectories& directories) {
  std::vector<CgroupMemory> limits;
  for (const auto& directory : directories.memory) {
    const auto memory = ReadMemory(directory.path, directory.unified);
    if (memory) limits.push_back(*memory);
  }
  return limits;
}

CgroupLimits ReadCgroupLimits(const std::string& root) {
  const CgroupDirectories directories = FindCgroups(root);
  return {ReadCpuQuota(directories), ReadMemoryLimits(directories)};
}

}  // namespace anvil
