// SPDX-License-Identifier: Apache-2.0
// Memory that is given back while its blocks stay.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "allocator.h"
#include "fake_streams.h"
#include "memory_source.h"
#include "memory_tag.h"
#include "units.h"

namespace anvil {
namespace {

const int kWeights = InternTag("weights");
const std::string& Folder() {
  static const std::string folder = std::filesystem::current_path();  // on disk, as /tmp may not be
  return folder;
}

size_t ResidentPages(const Block* block) {
  std::vector<unsigned char> pages(RoundUp(block->size, kPageSize) / kPageSize);
  EXPECT_EQ(mincore(block->ptr, block->size, pages.data()), 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

anvilError_t Suspend(DeviceAllocator& allocator, const char* folder, size_t* bytes) {
  FakeStreams streams;
  return allocator.Suspend(kWeights, folder, streams, bytes);
}

anvilError_t Resume(DeviceAllocator& allocator, size_t* bytes) {
  FakeStreams streams;
  return allocator.Resume(kWeights, streams, /*threads=*/3, bytes);
}

std::vector<Block*> Filled(DeviceAllocator& allocator) {
  std::vector<Block*> blocks;
  int value = 1;
  for (size_t bytes : {size_t{100}, size_t{5000}, size_t{700000}, 35 * kMiB, 3 * kMiB}) {
    blocks.push_back(Allocate(allocator, bytes, kWeights));
    std::memset(blocks.back()->ptr, value++, bytes);
  }
  return blocks;
}

void ExpectFilled(const std::vector<Block*>& blocks) {
  int value = 1;
  for (const Block* block : blocks) {
    const auto wrong = std::find_if(block->ptr, block->ptr + block->requested, [&](std::byte one) {
      return one != static_cast<std::byte>(value);
    });
    EXPECT_EQ(wrong, block->ptr + block->requested);
    ++value;
  }
}

TEST(Suspension, ContentsComeBackAtTheirAddresses) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  const std::vector<Block*> blocks = Filled(allocator);
  Block* other = Allocate(allocator, 3 * kMiB);
  std::memset(other->ptr, 99, other->size);
  const int64_t before = Reserved(allocator);
  for (int round = 0; round < 2; ++round) {
    size_t bytes = 0;
    ASSERT_EQ(Suspend(allocator, Folder().c_str(), &bytes), ANVIL_SUCCESS)
        << anvilGetLastErrorMessage();
    EXPECT_GE(bytes, 38 * kMiB);
    EXPECT_EQ(Reserved(allocator), before - static_cast<int64_t>(bytes));
    EXPECT_EQ(ResidentPages(blocks[3]), 0u);
    EXPECT_GT(ResidentPages(other), 0u);
    size_t resumed = 0;
    ASSERT_EQ(Resume(allocator, &resumed), ANVIL_SUCCESS) << anvilGetLastErrorMessage();
    EXPECT_EQ(resumed, bytes);
    EXPECT_EQ(Reserved(allocator), before);
    ExpectFilled(blocks);
  }
}

TEST(Suspension, WithoutAFolderContentsAreZeros) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  const std::vector<Block*> blocks = Filled(allocator);
  size_t bytes = 0;
  ASSERT_EQ(Suspend(allocator, nullptr, &bytes), ANVIL_SUCCESS) << anvilGetLastErrorMessage();
  ASSERT_EQ(Resume(allocator, &bytes), ANVIL_SUCCESS) << anvilGetLastErrorMessage();
  for (const Block* block : blocks) {
    EXPECT_TRUE(std::all_of(block->ptr, block->ptr + block->size,
                            [](std::byte one) { return one == std::byte{0}; }));
  }
}

TEST(Suspension, UsageIsOfWhatIsThere) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Block* freed = Allocate(allocator, 40 * kMiB, kWeights);
  Filled(allocator);
  Free(allocator, freed);
  size_t bytes = 0;
  ASSERT_EQ(Suspend(allocator, nullptr, &bytes), ANVIL_SUCCESS);
  EXPECT_LT(bytes, 60 * kMiB) << "what was idle is gone for good";
  EXPECT_EQ(allocator.GetUsage().reserved, 0u);
  EXPECT_EQ(allocator.GetUsage().idle, 0u);
  for (const anvilTagStats& tag : allocator.GetTagStats()) {
    if (std::string(tag.tag) != "weights") continue;
    EXPECT_EQ(tag.reserved_bytes, 0u);
    EXPECT_GT(tag.allocated_bytes, 38 * kMiB);
  }
}

TEST(Suspension, NothingIsAllocatedUnderTheTag) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  Filled(allocator);
  size_t bytes = 0;
  ASSERT_EQ(Suspend(allocator, nullptr, &bytes), ANVIL_SUCCESS);
  FakeStreams streams;
  Block* block = nullptr;
  bool dirty;
  EXPECT_EQ(allocator.Allocate({100, kWeights}, streams, &block, &dirty),
            ANVIL_ERROR_INVALID_VALUE);
  EXPECT_NE(std::string(anvilGetLastErrorMessage()).find("weights is suspended"),
            std::string::npos);
  EXPECT_NE(Allocate(allocator, 100), nullptr) << "another tag";
  ASSERT_EQ(Resume(allocator, &bytes), ANVIL_SUCCESS);
  EXPECT_NE(Allocate(allocator, 100, kWeights), nullptr);
}

TEST(Suspension, WhatIsFreedMeanwhileIsGone) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  std::vector<Block*> blocks = Filled(allocator);
  Block* huge = blocks[3];
  size_t bytes = 0, resumed = 0;
  ASSERT_EQ(Suspend(allocator, Folder().c_str(), &bytes), ANVIL_SUCCESS);
  Free(allocator, huge);
  EmptyCache(allocator);
  ASSERT_EQ(Resume(allocator, &resumed), ANVIL_SUCCESS) << anvilGetLastErrorMessage();
  EXPECT_LE(resumed, bytes - 35 * kMiB);
  blocks.resize(3);
  ExpectFilled(blocks);

  ASSERT_EQ(Suspend(allocator, Folder().c_str(), &bytes), ANVIL_SUCCESS);
  for (Block* block : blocks) Free(allocator, block);
  Block* last = Allocate(allocator, 100);  // of another tag
  EmptyCache(allocator);
  // One block is left of the tag (the fifth), so it is still suspended.
  EXPECT_EQ(Suspend(allocator, nullptr, &bytes), ANVIL_ERROR_INVALID_VALUE);
  Free(allocator, last);
}

TEST(Suspension, ATagWithoutBlocksIsNoLongerSuspended) {
  DeviceAllocator& allocator = NewAllocator(kGiB);
  const std::vector<Block*> blocks = Filled(allocator);
  size_t bytes = 0;
  ASSERT_EQ(Suspend(allocator, Folder().c_str(), &bytes), ANVIL_SUCCESS);
  for (Block* block : blocks) Free(allocator, block);
  EmptyCache(allocator);
  EXPECT_EQ(Reserved(allocator), 0);
  EXPECT_NE(Allocate(allocator, 100, kWeights), nullptr);
}

TEST(Suspension, RefusalsLeaveAllAsItWas) {
  DeviceAllocator& allocator = NewAllocator(100 * kMiB);
  const std::vector<Block*> blocks = Filled(allocator);
  size_t bytes = 0;
  const int64_t before = Reserved(allocator);
  EXPECT_EQ(Suspend(allocator, "/no/such/folder", &bytes), ANVIL_ERROR_SYSTEM);
  EXPECT_NE(std::string(anvilGetLastErrorMessage()).find("/no/such/folder"), std::string::npos);
  if (std::filesystem::exists("/dev/shm")) {
    EXPECT_EQ(Suspend(allocator, "/dev/shm", &bytes), ANVIL_ERROR_SYSTEM);
    EXPECT_NE(std::string(anvilGetLastErrorMessage()).find("in memory"), std::string::npos);
  }
  FakeStreams command;
  command.inside_command = true;
  EXPECT_EQ(allocator.Suspend(kWeights, nullptr, command, &bytes), ANVIL_ERROR_INVALID_VALUE);
  EXPECT_EQ(Resume(allocator, &bytes), ANVIL_ERROR_INVALID_VALUE);
  EXPECT_EQ(Reserved(allocator), before);
  ExpectFilled(blocks);

  ASSERT_EQ(Suspend(allocator, Folder().c_str(), &bytes), ANVIL_SUCCESS);
  Block* taken = Allocate(allocator, 90 * kMiB);
  EXPECT_EQ(Resume(allocator, &bytes), ANVIL_ERROR_OUT_OF_MEMORY);
  const std::string words = anvilGetLastErrorMessage();
  EXPECT_NE(words.find("held 90"), std::string::npos) << words;
  EXPECT_EQ(words.find("weights"), std::string::npos) << "which holds nothing: " << words;
  Free(allocator, taken);
  ASSERT_EQ(Resume(allocator, &bytes), ANVIL_SUCCESS) << anvilGetLastErrorMessage();
  ExpectFilled(blocks);
}

}  // namespace
}  // namespace anvil
