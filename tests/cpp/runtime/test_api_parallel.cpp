// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "api_checks.h"

namespace {

TEST(ParallelFor, RunsOnEveryDevice) {
  for (int device = 0; device < DeviceCount(); ++device) {
    std::vector<std::atomic<int>> visits(1000);
    ASSERT_OK(anvilParallelFor(
        device, 1000, 10,
        [](void* arg, int64_t begin, int64_t end, int) {
          auto& counts = *static_cast<std::vector<std::atomic<int>>*>(arg);
          for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
        },
        &visits));
    for (const auto& count : visits) ASSERT_EQ(count, 1);
  }
}

TEST(ParallelFor, MistakesAreErrors) {
  EXPECT_FAILS(anvilParallelFor(0, 1, 1, nullptr, nullptr), ANVIL_ERROR_INVALID_VALUE, "fn");
  EXPECT_FAILS(anvilParallelFor(
                   60, 1, 1, [](void*, int64_t, int64_t, int) {}, nullptr),
               ANVIL_ERROR_INVALID_DEVICE, "60");
}

}  // namespace
