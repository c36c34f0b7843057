// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <thread>

#include "api_checks.h"

namespace {

TEST(Devices, HaveDisjointCoresAndTheMemoryAskedFor) {
  std::set<int> seen;
  for (int device = 0; device < DeviceCount(); ++device) {
    anvilDeviceProperties properties;
    ASSERT_OK(anvilGetDeviceProperties(&properties, device));
    EXPECT_EQ(properties.physical_index, device);
    EXPECT_EQ(properties.total_memory, size_t{256} << 20);
    EXPECT_EQ(properties.core_count, anvilWorkerCount(device));
    ASSERT_GE(properties.core_count, 1);
    for (int i = 0; i < properties.core_count; ++i) {
      EXPECT_TRUE(seen.insert(properties.cores[i]).second);
    }
    EXPECT_EQ(std::string(properties.name).find("Anvil host device ("), 0u) << properties.name;
    EXPECT_NE(std::string(properties.name).find(" core"), std::string::npos) << properties.name;
  }
  EXPECT_EQ(anvilIsInitialized(), 1);
  EXPECT_EQ(anvilIsForkedChild(), 0);
}

TEST(Devices, TheCurrentOneIsPerThread) {
  const int last = DeviceCount() - 1;
  ASSERT_OK(anvilSetDevice(last));
  int device = -1;
  ASSERT_OK(anvilGetDevice(&device));
  EXPECT_EQ(device, last);
  std::thread([] {
    int other = -1;
    EXPECT_OK(anvilGetDevice(&other));
    EXPECT_EQ(other, 0);
  }).join();
  ASSERT_OK(anvilSetDevice(0));
}

TEST(Devices, UnknownOnesAreNamed) {
  const int count = DeviceCount();
  anvilDeviceProperties properties;
  anvilStream_t stream;
  for (int device : {-1, count, 1000}) {
    const std::string words = "no device " + std::to_string(device);
    EXPECT_FAILS(anvilSetDevice(device), ANVIL_ERROR_INVALID_DEVICE, words);
    EXPECT_FAILS(anvilGetDeviceProperties(&properties, device), ANVIL_ERROR_INVALID_DEVICE, words);
    EXPECT_FAILS(anvilDeviceSynchronize(device), ANVIL_ERROR_INVALID_DEVICE, words);
    EXPECT_FAILS(anvilStreamCreate(&stream, device, 0), ANVIL_ERROR_INVALID_DEVICE, words);
    EXPECT_EQ(anvilWorkerCount(device), 1);
  }
}

TEST(Devices, NullArgumentsAreNamed) {
  EXPECT_FAILS(anvilGetDeviceCount(nullptr), ANVIL_ERROR_INVALID_VALUE, "count");
  EXPECT_FAILS(anvilGetDevice(nullptr), ANVIL_ERROR_INVALID_VALUE, "device");
  EXPECT_FAILS(anvilGetDeviceProperties(nullptr, 0), ANVIL_ERROR_INVALID_VALUE, "properties");
}

TEST(Errors, HaveNamesAndAreKeptPerThread) {
  for (int code = ANVIL_SUCCESS; code <= ANVIL_ERROR_CAPTURE; ++code) {
    const std::string name = anvilErrorName(static_cast<anvilError_t>(code));
    EXPECT_EQ(name.find("ANVIL_"), 0u);
    EXPECT_EQ(name.find("UNKNOWN"), std::string::npos);
  }
  EXPECT_FAILS(anvilSetDevice(99), ANVIL_ERROR_INVALID_DEVICE, "99");
  std::thread([] { EXPECT_STREQ(anvilGetLastErrorMessage(), ""); }).join();
  EXPECT_NE(std::string(anvilGetLastErrorMessage()), "");
}

}  // namespace
