// SPDX-License-Identifier: Apache-2.0
// Streams and their memory, for the tests of what lives in stream order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "api_checks.h"
#include "stream_work.h"

inline constexpr size_t kMiB = size_t{1} << 20;

struct Allocation {
  anvilBlock_t block = nullptr;
  char* ptr = nullptr;

  size_t size() const { return anvilBlockSize(block); }
  // Only while no command uses the memory.
  bool IsFilledWith(char value) const {
    return std::all_of(ptr, ptr + size(), [value](char byte) { return byte == value; });
  }
};

inline Allocation AllocateFor(anvilStream_t stream, size_t bytes, unsigned flags = 0) {
  Allocation made;
  void* ptr = nullptr;
  EXPECT_OK(anvilMallocAsync(&made.block, &ptr, bytes, stream, flags));
  made.ptr = static_cast<char*>(ptr);
  return made;
}

inline anvilMemoryStats Stats() {
  anvilMemoryStats stats{};
  EXPECT_OK(anvilMemGetStats(&stats, 0));
  return stats;
}
inline int64_t Held() { return Stats().allocated_bytes.current; }
inline int64_t Reserved() { return Stats().reserved_bytes.current; }

// Two streams of device 0, with nothing cached at first.
class StreamMemory : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(anvilMemEmptyCache(0));
    ASSERT_OK(anvilStreamCreate(&stream_, 0, 0));
    ASSERT_OK(anvilStreamCreate(&other_, 0, 0));
    held_before_ = Held();
  }
  void TearDown() override {
    EXPECT_OK(anvilDeviceSynchronize(0));
    EXPECT_EQ(Held(), held_before_);
    if (other_ != nullptr) {
      EXPECT_OK(anvilStreamDestroy(other_));
    }
    EXPECT_OK(anvilStreamDestroy(stream_));
  }

  anvilStream_t stream_ = nullptr;
  anvilStream_t other_ = nullptr;
  int64_t held_before_ = 0;
};
