// SPDX-License-Identifier: Apache-2.0
// Allocators without a device, and streams whose state the test decides.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "allocator.h"

namespace anvil {

class FakeStreams final : public StreamOrder {
 public:
  bool WaitIdle() override {
    if (inside_command) return false;
    ++waits;
    if (on_wait) on_wait();
    return true;
  }
  std::vector<Stream> Streams() override { return list; }

  std::vector<Stream> list;
  bool inside_command = false;
  std::function<void()> on_wait;  // what happens while one waits
  int waits = 0;
};

inline constexpr int kDevice = 7;

// Allocators are never destroyed (device.h), neither are the tests'.
inline DeviceAllocator& NewAllocator(size_t limit) {
  static std::vector<DeviceAllocator*>& all = *new std::vector<DeviceAllocator*>;
  all.push_back(new DeviceAllocator(kDevice, -1, limit));
  return *all.back();
}

inline Block* Allocate(DeviceAllocator& allocator, const DeviceAllocator::Request& request,
                       StreamOrder& streams, bool* dirty = nullptr) {
  Block* block = nullptr;
  bool ignored;
  EXPECT_EQ(allocator.Allocate(request, streams, &block, dirty ? dirty : &ignored), ANVIL_SUCCESS)
      << anvilGetLastErrorMessage();
  return block;
}

inline Block* Allocate(DeviceAllocator& allocator, size_t bytes, int tag = 0,
                       bool* dirty = nullptr) {
  FakeStreams streams;
  return Allocate(allocator, {bytes, tag}, streams, dirty);
}

inline void Free(DeviceAllocator& allocator, Block* block) {
  bool held_back = true;
  EXPECT_EQ(allocator.Free(block, false, false, &held_back), ANVIL_SUCCESS)
      << anvilGetLastErrorMessage();
  EXPECT_FALSE(held_back);
}

inline void ExpectFreedBefore(DeviceAllocator& allocator, Block* block) {
  bool held_back = false;
  EXPECT_EQ(allocator.Free(block, false, false, &held_back), ANVIL_ERROR_INVALID_VALUE);
}

inline void EmptyCache(DeviceAllocator& allocator) {
  FakeStreams streams;
  allocator.EmptyCache(streams);
}

inline int64_t Reserved(DeviceAllocator& allocator) {
  return allocator.GetStats().reserved_bytes.current;
}

}  // namespace anvil
