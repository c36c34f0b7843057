// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>

#include "planner.h"
#include "units.h"

namespace anvil {
namespace {

std::vector<int> Range(int begin, int end) {
  std::vector<int> ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

// A host of `nodes` NUMA nodes with `cores` physical cores each and `threads` SMT siblings a core,
// numbered as kernels do: first siblings of all cores first. 32 GiB a node, all available.
Host MakeHost(int nodes, int cores, int threads = 1) {
  Host host;
  const int physical = nodes * cores;
  for (int id = 0; id < physical * threads; ++id) {
    host.cpus.push_back({id, id % physical, id % physical / cores});
  }
  host.allowed_cpus = Range(0, physical * threads);
  for (int node = 0; node < nodes; ++node) {
    host.nodes.push_back({node, 32 * kGiB, 32 * kGiB, true});
  }
  host.memory.total = host.memory.available = static_cast<uint64_t>(nodes) * 32 * kGiB;
  return host;
}

PlanRequest Devices(int count) {
  PlanRequest request;
  request.device_count = count;
  return request;
}

struct CoreCase {
  std::string name;
  Host host;
  int count;
  std::vector<std::vector<int>> cores;
  std::vector<int> nodes;
};

void PrintTo(const CoreCase& test, std::ostream* stream) { *stream << test.name; }

Host WithCpuset(Host host, std::vector<int> allowed) {
  host.allowed_cpus = std::move(allowed);
  return host;
}

Host WithQuota(Host host, double cpus) {
  host.cpu_quota = cpus;
  return host;
}

std::vector<CoreCase> CoreCases() {
  return {
      {"OneDeviceTakesAll", MakeHost(1, 4), 1, {{0, 1, 2, 3}}, {0}},
      {"SiblingsAreSkipped", MakeHost(1, 2, 2), 1, {{0, 1}}, {0}},
      {"ASiblingAloneCounts", WithCpuset(MakeHost(1, 2, 2), {1, 2}), 1, {{1, 2}}, {0}},
      {"OneSiblingOfEachPair", WithCpuset(MakeHost(1, 2, 2), {2, 3}), 1, {{2, 3}}, {0}},
      {"CpusetSubset", WithCpuset(MakeHost(1, 8), {1, 4, 6}), 1, {{1, 4, 6}}, {0}},
      {"EvenSplit", MakeHost(1, 4), 2, {{0, 1}, {2, 3}}, {0, 0}},
      {"UnevenSplit", MakeHost(1, 5), 2, {{0, 1}, {2, 3, 4}}, {0, 0}},
      {"AsManyAsCores", MakeHost(1, 3), 3, {{0}, {1}, {2}}, {0, 0, 0}},
      {"OneDeviceOnTwoNodes", MakeHost(2, 2), 1, {{0, 1, 2, 3}}, {-1}},
      {"ADeviceForEachNode", MakeHost(2, 2), 2, {{0, 1}, {2, 3}}, {0, 1}},
      {"ThreeOnTwoNodes", MakeHost(2, 4), 3, {{0, 1}, {2, 3}, {4, 5, 6, 7}}, {0, 0, 1}},
      {"TwoOnFourNodes", MakeHost(4, 1), 2, {{0, 1}, {2, 3}}, {-1, -1}},
      {"TwoOnThreeNodes", MakeHost(3, 1), 2, {{0}, {1, 2}}, {0, -1}},
      {"LargerNodeGetsMore",
       WithCpuset(MakeHost(2, 6), {0, 6, 7, 8, 9, 10, 11}),
       3,
       {{0}, {6, 7, 8}, {9, 10, 11}},
       {0, 1, 1}},
      {"CpusetOnOneNode", WithCpuset(MakeHost(2, 4), {4, 5}), 1, {{4, 5}}, {1}},
      {"QuotaRoundsDown", WithQuota(MakeHost(1, 8), 2.9), 1, {{0, 1}}, {0}},
      {"QuotaBelowOneIsOne", WithQuota(MakeHost(1, 8), 0.5), 1, {{0}}, {0}},
      {"QuotaAboveTheCores", WithQuota(MakeHost(1, 2), 64), 1, {{0, 1}}, {0}},
      {"QuotaLeavesOneNode", WithQuota(MakeHost(2, 4), 3), 1, {{0, 1, 2}}, {0}},
      {"QuotaPrefersTheLargestNode",
       WithQuota(WithCpuset(MakeHost(2, 4), {0, 4, 5, 6, 7}), 3),
       1,
       {{4, 5, 6}},
       {1}},
      {"QuotaIsShared", WithQuota(MakeHost(2, 4), 4), 2, {{0, 1}, {4, 5}}, {0, 1}},
      {"QuotaOfOddSize", WithQuota(MakeHost(1, 8), 5), 2, {{0, 1, 2}, {4, 5}}, {0, 0}},
      {"CpuOutsideTheTopology", WithCpuset(MakeHost(1, 1), {0, 7}), 1, {{0, 7}}, {0}},
  };
}

class PlannedCores : public testing::TestWithParam<CoreCase> {};

TEST_P(PlannedCores, AreAsExpected) {
  const CoreCase& test = GetParam();
  const auto plans = PlanDevices(test.host, Devices(test.count));
  ASSERT_TRUE(plans.ok()) << plans.error;
  ASSERT_EQ(plans.value.size(), test.cores.size());
  for (size_t device = 0; device < test.cores.size(); ++device) {
    EXPECT_EQ(plans.value[device].physical_index, static_cast<int>(device));
    EXPECT_EQ(plans.value[device].cores, test.cores[device]) << "device " << device;
    EXPECT_EQ(plans.value[device].numa_node, test.nodes[device]) << "device " << device;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, PlannedCores, testing::ValuesIn(CoreCases()),
                         [](const auto& info) { return info.param.name; });

TEST(Planner, DevicesShareCoresWhereThatIsAllowed) {
  PlanRequest request = Devices(5);
  request.share_cores = true;
  const auto shared = PlanDevices(MakeHost(2, 1, 2), request);
  ASSERT_TRUE(shared.ok()) << shared.error;
  for (size_t device = 0; device < 5; ++device) {
    const int core = static_cast<int>(device % 2);
    EXPECT_EQ(shared.value[device].cores, std::vector<int>{core});
    EXPECT_EQ(shared.value[device].numa_node, core);
  }
  // Only where they must.
  request.device_count = 2;
  const auto apart = PlanDevices(MakeHost(1, 4), request);
  ASSERT_TRUE(apart.ok()) << apart.error;
  EXPECT_EQ(apart.value[0].cores, (std::vector<int>{0, 1}));
  EXPECT_EQ(apart.value[1].cores, (std::vector<int>{2, 3}));
}

TEST(Planner, CoresThatAreTheHostsBelongToNoDevice) {
  PlanRequest request = Devices(1);
  request.host_cores = 1;
  const auto one = PlanDevices(MakeHost(1, 4), request);
  ASSERT_TRUE(one.ok()) << one.error;
  EXPECT_EQ(one.value[0].cores, (std::vector<int>{0, 1, 2}));
  // From each node in turn, so that devices stay alike.
  request.device_count = request.host_cores = 2;
  const auto two = PlanDevices(MakeHost(2, 3), request);
  ASSERT_TRUE(two.ok()) << two.error;
  EXPECT_EQ(two.value[0].cores, (std::vector<int>{0, 1}));
  EXPECT_EQ(two.value[1].cores, (std::vector<int>{3, 4}));
  // A quota of 4 CPUs is 2 for devices, too.
  request.device_count = 1;
  const auto bounded = PlanDevices(WithQuota(MakeHost(1, 8), 4.5), request);
  ASSERT_TRUE(bounded.ok()) << bounded.error;
  EXPECT_EQ(bounded.value[0].cores, (std::vector<int>{0, 1}));
}

// Whatever the host: no core twice, no device without a core, and no straddling where it can be
// avoided.
TEST(Planner, CoresAreDisjointOnEveryHost) {
  for (int nodes : {1, 2, 3, 4}) {
    for (int cores : {1, 2, 5, 8}) {
      for (int count = 1; count <= nodes * cores; ++count) {
        const auto plans = PlanDevices(MakeHost(nodes, cores, 2), Devices(count));
        ASSERT_TRUE(plans.ok()) << plans.error;
        std::vector<bool> seen(static_cast<size_t>(nodes * cores * 2));
        size_t total = 0;
        for (const DevicePlan& plan : plans.value) {
          ASSERT_FALSE(plan.cores.empty());
          ASSERT_TRUE(std::is_sorted(plan.cores.begin(), plan.cores.end()));
          ASSERT_TRUE(count < nodes || plan.numa_node >= 0);
          for (int core : plan.cores) {
            ASSERT_FALSE(seen[static_cast<size_t>(core)]);
            seen[static_cast<size_t>(core)] = true;
            ++total;
          }
        }
        ASSERT_EQ(total, static_cast<size_t>(nodes * cores));
      }
    }
  }
}

// ---------------------------------------------------------------- memory

uint64_t Memory(const Host& host, int count = 1, size_t device = 0) {
  const auto plans = PlanDevices(host, Devices(count));
  EXPECT_TRUE(plans.ok()) << plans.error;
  return plans.ok() ? plans.value[device].memory : 0;
}

TEST(PlannedMemory, IsWhatIsAvailableLessHeadroom) {
  Host host = MakeHost(1, 4);
  EXPECT_EQ(Memory(host), static_cast<uint64_t>(30.4 * static_cast<double>(kGiB)) / (2 * kMiB) *
                              (2 * kMiB));  // 5 % of 32 GiB is 1.6 GiB
  host.memory.available = 10 * kGiB;
  EXPECT_EQ(Memory(host), 9 * kGiB);  // at least 1 GiB
  host.memory.available = kGiB;
  EXPECT_EQ(Memory(host), kGiB / 2);  // but at most half
}

TEST(PlannedMemory, IsBoundedByEveryControlGroup) {
  Host host = MakeHost(1, 4);
  host.memory.cgroups = {{20 * kGiB, 4 * kGiB, 0}, {64 * kGiB, 60 * kGiB, 0}};
  EXPECT_EQ(Memory(host), 3 * kGiB);
  host.memory.cgroups[1].reclaimable = 50 * kGiB;  // page cache gives way
  EXPECT_EQ(Memory(host), 15 * kGiB);
  host.memory.cgroups[0] = {8 * kGiB, 12 * kGiB, 8 * kGiB};
  EXPECT_EQ(Memory(host), 3 * kGiB);
}

TEST(PlannedMemory, IsBoundedByTheAllowedNodes) {
  Host host = MakeHost(2, 2);
  host.nodes[1].allowed = false;
  host.nodes[0].available = 6 * kGiB;
  EXPECT_EQ(Memory(host), 5 * kGiB);
}

TEST(PlannedMemory, FollowsTheNodesOfTheDevice) {
  Host host = MakeHost(2, 2);
  host.memory.available = 40 * kGiB;
  host.nodes[1].available = 8 * kGiB;
  // 38 GiB to give: node 1 has less than half of it.
  EXPECT_EQ(Memory(host, 2, 0), 19 * kGiB);
  EXPECT_NEAR(static_cast<double>(Memory(host, 2, 1)), 7.6 * static_cast<double>(kGiB), 2 * kMiB);
  // Two devices on each node share it.
  EXPECT_NEAR(static_cast<double>(Memory(host, 4, 3)), 3.8 * static_cast<double>(kGiB), 2 * kMiB);
  // A device confined to one node by the CPU set stays with its memory.
  EXPECT_NEAR(static_cast<double>(Memory(WithCpuset(host, {2, 3}))),
              7.6 * static_cast<double>(kGiB), 2 * kMiB);
}

TEST(PlannedMemory, DoesNotRelyOnNodesThatDoNotTell) {
  Host host = MakeHost(1, 2);
  host.nodes.clear();
  host.memory.available = 10 * kGiB;
  EXPECT_EQ(Memory(host), 9 * kGiB);
  host = MakeHost(2, 2);
  host.memory.available = 20 * kGiB;
  host.nodes[1].total = host.nodes[1].available = 0;  // cores without memory of their own
  EXPECT_EQ(Memory(host, 2, 1), Memory(host, 2, 0));
}

TEST(PlannedMemory, CountsWhatABalloonHolds) {
  Host host = MakeHost(1, 2);
  host.nodes[0].total = 8 * kGiB;  // of 32 GiB
  host.nodes[0].available = 7 * kGiB;
  host.memory.available = 30 * kGiB;
  EXPECT_EQ(Memory(host),
            static_cast<uint64_t>(28 * 0.95 * static_cast<double>(kGiB)) / (2 * kMiB) * (2 * kMiB));
}

TEST(PlannedMemory, AskedForIsGivenToEachDevice) {
  PlanRequest request = Devices(2);
  request.device_memory = 12345 * kKiB;
  Host host = MakeHost(1, 4);
  host.memory.available = kMiB;  // what is free right now is not the question
  const auto plans = PlanDevices(host, request);
  ASSERT_TRUE(plans.ok()) << plans.error;
  for (const DevicePlan& plan : plans.value) EXPECT_EQ(plan.memory, 12345 * kKiB);
}

// ---------------------------------------------------------------- visibility and errors

TEST(Planner, VisibleDevicesKeepTheirOrderAndTheirPlan) {
  PlanRequest request = Devices(4);
  const auto all = PlanDevices(MakeHost(1, 8), request);
  request.visible = {3, 1};
  const auto plans = PlanDevices(MakeHost(1, 8), request);
  ASSERT_TRUE(plans.ok()) << plans.error;
  ASSERT_EQ(plans.value.size(), 2u);
  for (size_t index : {0, 1}) {
    const size_t physical = index == 0 ? 3 : 1;
    EXPECT_EQ(plans.value[index].physical_index, static_cast<int>(physical));
    EXPECT_EQ(plans.value[index].cores, all.value[physical].cores);
    EXPECT_EQ(plans.value[index].memory, all.value[physical].memory);
  }
}

void ExpectError(const Host& host, const PlanRequest& request,
                 const std::vector<std::string>& parts) {
  const auto plans = PlanDevices(host, request);
  ASSERT_FALSE(plans.ok());
  for (const std::string& part : parts) {
    EXPECT_NE(plans.error.find(part), std::string::npos) << plans.error << "\nlacks: " << part;
  }
}

TEST(PlannerError, MoreDevicesThanCores) {
  ExpectError(MakeHost(1, 2, 2), Devices(3),
              {"ANVIL_DEVICES=3", "only 2 cores", "4 logical CPUs", "2 physical cores", "at most 2",
               "ANVIL_SHARE_CORES=1"});
  ExpectError(WithQuota(MakeHost(1, 8), 1.5), Devices(2),
              {"ANVIL_DEVICES=2", "only 1 core is usable", "quota is 1.5 CPUs", "at most 1"});
}

TEST(PlannerError, NoCoreIsLeftToADevice) {
  PlanRequest request = Devices(1);
  request.host_cores = 2;
  ExpectError(MakeHost(1, 2), request,
              {"ANVIL_HOST_CORES=2", "leaves no core", "2 are usable", "at most 1"});
  request = Devices(3);
  request.host_cores = 2;
  ExpectError(MakeHost(1, 4), request,
              {"only 2 cores", "ANVIL_HOST_CORES leaves 2 to the host", "at most 2"});
}

TEST(PlannerError, MoreMemoryThanTheHostHas) {
  PlanRequest request = Devices(2);
  request.device_memory = 17 * kGiB;
  ExpectError(MakeHost(1, 4), request,
              {"ANVIL_DEVICE_MEMORY", "17 GiB", "2 devices", "has 32 GiB", "at most 16 GiB"});
  request = Devices(1);
  request.device_memory = 5 * kGiB;
  Host host = MakeHost(1, 4);
  host.memory.cgroups = {{4 * kGiB, 0, 0}};
  ExpectError(host, request, {"ANVIL_DEVICE_MEMORY", "5 GiB", "has 4 GiB", "cgroup"});
}

TEST(PlannerError, TooLittleMemoryIsLeft) {
  Host host = MakeHost(1, 4);
  host.memory.available = 20 * kMiB;
  ExpectError(host, Devices(1), {"Only 20 MiB", "too little for 1 device"});
}

TEST(PlannerError, UnknownVisibleDevice) {
  PlanRequest request = Devices(2);
  request.visible = {0, 2};
  ExpectError(MakeHost(1, 4), request,
              {"ANVIL_VISIBLE_DEVICES", "device 2", "0 to 1", "ANVIL_DEVICES"});
  request = Devices(1);
  request.visible = {5};
  ExpectError(MakeHost(1, 4), request, {"device 5", "there is one device, 0"});
}

TEST(PlannerError, NoCpuAtAll) {
  ExpectError(WithCpuset(MakeHost(1, 4), {}), Devices(1), {"no CPU"});
}

}  // namespace
}  // namespace anvil
