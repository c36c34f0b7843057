// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cgroup.h"
#include "file_tree.h"
#include "units.h"

namespace anvil {
namespace {

constexpr char kMountV2[] =
    "24 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

constexpr char kMountsV1[] =
    "24 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n"
    "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST(Cgroup, WithoutAnyThereAreNoLimits) {
  FileTree tree;
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  EXPECT_FALSE(limits.cpu_quota);
  EXPECT_TRUE(limits.memory.empty());
}

TEST(Cgroup, Version2TakesTheTightestLevel) {
  FileTree tree;
  tree.Write("/proc/self/mountinfo", kMountV2)
      .Write("/proc/self/cgroup", "0::/pods/pod:1/job\n")
      .Write("/sys/fs/cgroup/pods/cpu.max", "400000 100000\n")
      .Write("/sys/fs/cgroup/pods/pod:1/cpu.max", "150000 100000\n")
      .Write("/sys/fs/cgroup/pods/pod:1/job/cpu.max", "max 100000\n")
      .Write("/sys/fs/cgroup/pods/memory.max", "8589934592\n")
      .Write("/sys/fs/cgroup/pods/memory.current", "2147483648\n")
      .Write("/sys/fs/cgroup/pods/pod:1/memory.max", "max\n")
      .Write("/sys/fs/cgroup/pods/pod:1/job/memory.max", "4294967296\n")
      .Write("/sys/fs/cgroup/pods/pod:1/job/memory.high", "3221225472\n")
      .Write("/sys/fs/cgroup/pods/pod:1/job/memory.current", "1073741824\n")
      .Write("/sys/fs/cgroup/pods/pod:1/job/memory.stat",
             "anon 536870912\nfile 500000000\nactive_file 100\ninactive_file 20\n"
             "slab_reclaimable 3\nslab_unreclaimable 1000000\n");
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  EXPECT_EQ(limits.cpu_quota, 1.5);
  ASSERT_EQ(limits.memory.size(), 2u);
  EXPECT_EQ(limits.memory[0].limit, 3 * kGiB);  // memory.high counts
  EXPECT_EQ(limits.memory[0].usage, kGiB);
  EXPECT_EQ(limits.memory[0].reclaimable, 123u);
  EXPECT_EQ(limits.memory[1].limit, 8 * kGiB);
  EXPECT_EQ(limits.memory[1].usage, 2 * kGiB);
  EXPECT_EQ(limits.memory[1].reclaimable, 0u);
}

TEST(Cgroup, Version2InsideAContainerSeesItsGroupAtTheMount) {
  FileTree tree;
  tree.Write("/proc/self/mountinfo", kMountV2)
      .Write("/proc/self/cgroup", "0::/\n")
      .Write("/sys/fs/cgroup/cpu.max", "250000 100000\n")
      .Write("/sys/fs/cgroup/memory.max", "1073741824\n")
      .Write("/sys/fs/cgroup/memory.current", "4096\n");
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  EXPECT_EQ(limits.cpu_quota, 2.5);
  ASSERT_EQ(limits.memory.size(), 1u);
  EXPECT_EQ(limits.memory[0].limit, kGiB);
}

TEST(Cgroup, Version1ReadsEachControllersHierarchy) {
  FileTree tree;
  tree.Write("/proc/self/mountinfo", kMountsV1)
      .Write("/proc/self/cgroup",
             "5:cpu,cpuacct:/job\n4:memory:/job/inner\n1:name=systemd:/\n0::/\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
      .Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
      .Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
      .Write("/sys/fs/cgroup/memory/job/inner/memory.limit_in_bytes", "2147483648\n")
      .Write("/sys/fs/cgroup/memory/job/inner/memory.usage_in_bytes", "1048576\n")
      .Write("/sys/fs/cgroup/memory/job/inner/memory.stat",
             "active_file 1\ntotal_active_file 4096\ntotal_inactive_file 8192\n");
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  EXPECT_EQ(limits.cpu_quota, 0.5);
  ASSERT_EQ(limits.memory.size(), 1u);
  EXPECT_EQ(limits.memory[0].limit, 2 * kGiB);
  EXPECT_EQ(limits.memory[0].usage, kMiB);
  EXPECT_EQ(limits.memory[0].reclaimable, 12288u);
}

TEST(Cgroup, Version1InsideAContainerStripsWhatTheMountStandsFor) {
  FileTree tree;
  tree.Write("/proc/self/mountinfo",
             "32 24 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n")
      .Write("/proc/self/cgroup", "4:memory:/docker/abc\n")
      .Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n")
      .Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  ASSERT_EQ(limits.memory.size(), 1u);
  EXPECT_EQ(limits.memory[0].limit, kGiB);
}

TEST(Cgroup, NonsenseIsNoLimit) {
  FileTree tree;
  tree.Write("/proc/self/mountinfo", std::string(kMountV2) + "garbage\n30 - cgroup2\n")
      .Write("/proc/self/cgroup", "no colons\n0::/\n")
      .Write("/sys/fs/cgroup/cpu.max", "0 100000\n")
      .Write("/sys/fs/cgroup/memory.max", "-5\n");
  const CgroupLimits limits = ReadCgroupLimits(tree.root());
  EXPECT_FALSE(limits.cpu_quota);
  EXPECT_TRUE(limits.memory.empty());
}

}  // namespace
}  // namespace anvil
