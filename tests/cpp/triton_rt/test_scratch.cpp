// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>

#include "scratch.h"

namespace anvil::triton {
namespace {

TEST(Scratch, IsAlignedReusedAndGrows) {
  void* first = thread_scratch(100);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kScratchAlignment, 0u);
  EXPECT_EQ(thread_scratch(50), first);
  EXPECT_EQ(thread_scratch(128), first);
  void* larger = thread_scratch(1 << 20);
  ASSERT_NE(larger, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(larger) % kScratchAlignment, 0u);
  std::memset(larger, 1, 1 << 20);
  EXPECT_EQ(thread_scratch(64), larger);
}

TEST(Scratch, EachThreadHasItsOwn) {
  void* mine = thread_scratch(64);
  void* others = nullptr;
  std::thread([&others] { others = thread_scratch(64); }).join();
  EXPECT_NE(mine, others);
}

TEST(Scratch, RefusalIsNullAndTheNextCallWorks) {
  EXPECT_EQ(thread_scratch(std::numeric_limits<size_t>::max() / 2), nullptr);
  EXPECT_EQ(thread_scratch(std::numeric_limits<size_t>::max()), nullptr);
  EXPECT_NE(thread_scratch(64), nullptr);
}

}  // namespace
}  // namespace anvil::triton
