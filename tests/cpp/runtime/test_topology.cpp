// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "file_tree.h"
#include "topology.h"
#include "units.h"

namespace anvil {
namespace {

std::string CpuFile(int cpu, const char* name) {
  return "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name;
}

TEST(Topology, ReadsCpuLists) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("5,1,1-2"), (std::vector<int>{1, 2, 5}));
  EXPECT_TRUE(ParseCpuList("\n").empty());
}

TEST(Topology, ReadsSiblingsNodesAndMemory) {
  FileTree tree;
  tree.Write("/sys/devices/system/cpu/online", "0-3\n")
      .Write("/sys/devices/system/node/online", "0-1\n")
      .Write("/sys/devices/system/node/node0/cpulist", "0,2\n")
      .Write("/sys/devices/system/node/node1/cpulist", "1,3\n")
      .Write("/sys/devices/system/node/node0/meminfo",
             "Node 0 MemTotal:   1048576 kB\nNode 0 MemFree:  1024 kB\n"
             "Node 0 Active(file):  512 kB\nNode 0 Inactive(file): 256 kB\n"
             "Node 0 SReclaimable: 64 kB\n")
      .Write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2097152 kB\n")
      .Write("/proc/self/status", "Name:\ttest\nMems_allowed_list:\t0\n")
      .Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU 9000\n")
      .Write("/proc/meminfo",
             "MemTotal:       3145728 kB\nMemFree:  10 kB\nMemAvailable:   2097152 kB\n");
  // Siblings are 0+2 and 1+3; an older kernel names them by another file.
  tree.Write(CpuFile(0, "core_cpus_list"), "0,2\n").Write(CpuFile(2, "core_cpus_list"), "0,2\n");
  tree.Write(CpuFile(1, "thread_siblings_list"), "1,3\n")
      .Write(CpuFile(3, "thread_siblings_list"), "1,3\n");
  const Host host = ReadHost(tree.root(), {0, 1});

  ASSERT_EQ(host.cpus.size(), 4u);
  for (const LogicalCpu& cpu : host.cpus) {
    EXPECT_EQ(cpu.core, cpu.id % 2);
    EXPECT_EQ(cpu.node, cpu.id % 2);
  }
  EXPECT_EQ(host.allowed_cpus, (std::vector<int>{0, 1}));
  ASSERT_EQ(host.nodes.size(), 2u);
  EXPECT_EQ(host.nodes[0].total, kGiB);
  EXPECT_EQ(host.nodes[0].available, (1024 + 512 + 256 + 64) * kKiB);
  EXPECT_TRUE(host.nodes[0].allowed);
  EXPECT_FALSE(host.nodes[1].allowed);
  EXPECT_EQ(host.memory.total, 3 * kGiB);
  EXPECT_EQ(host.memory.available, 2 * kGiB);
  EXPECT_EQ(host.cpu_model, "Test CPU 9000");
  EXPECT_FALSE(host.cpu_quota);
}

TEST(Topology, WithoutSysfsEveryCpuIsACoreOfOneNode) {
  FileTree tree;
  tree.Write("/sys/devices/system/cpu/online", "0-1\n")
      .Write("/proc/meminfo", "MemTotal: 1024 kB\nMemFree: 100 kB\nCached: 28 kB\n");
  const Host host = ReadHost(tree.root(), {0, 1});
  ASSERT_EQ(host.cpus.size(), 2u);
  EXPECT_EQ(host.cpus[1].core, 1);
  EXPECT_EQ(host.cpus[1].node, 0);
  EXPECT_TRUE(host.nodes.empty());
  EXPECT_EQ(host.memory.available, 128 * kKiB);  // a kernel without MemAvailable
  EXPECT_FALSE(host.cpu_model.empty());
}

TEST(Topology, ReadsThisMachine) {
  const std::vector<int> affinity = ReadAffinity();
  ASSERT_FALSE(affinity.empty());
  const Host host = ReadHost("", affinity);
  EXPECT_FALSE(host.cpus.empty());
  EXPECT_GT(host.memory.total, 0u);
  EXPECT_GT(host.memory.available, 0u);
  EXPECT_LE(host.memory.available, host.memory.total);
}

}  // namespace
}  // namespace anvil
