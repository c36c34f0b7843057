// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "error.h"
#include "segment.h"

namespace anvil::comm {
namespace {

void ExpectRefused(const std::string& address, const std::string& words) {
  try {
    Segment::Attach(address);
    FAIL() << address;
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Segment, IsOneMemoryForAllWhoAttach) {
  const auto segment = Segment::Create(3, 4096);
  const pid_t child = fork();
  if (child == 0) {
    const auto theirs = Segment::Attach(segment->address());
    std::strcpy(reinterpret_cast<char*>(theirs->slot(2, 5)), "from the child");
    theirs->rank(1).published.store(17);
    _exit(theirs->ranks() == 3 && theirs->slot_bytes() == 4096 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ(reinterpret_cast<char*>(segment->slot(2, 5)), "from the child");
  EXPECT_EQ(segment->rank(1).published.load(), 17u);
}

TEST(Segment, PartsDoNotOverlap) {
  const auto segment = Segment::Create(3, 256);
  std::set<std::pair<std::byte*, size_t>> parts;
  const auto add = [&](const void* part, size_t bytes) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part) % kLine, 0u);
    parts.insert({static_cast<std::byte*>(const_cast<void*>(part)), bytes});
  };
  for (int rank = 0; rank < 3; ++rank) {
    add(&segment->rank(rank), sizeof(RankState));
    for (uint64_t step = 0; step < Segment::kSlots; ++step) {
      add(&segment->slot_header(rank, step), sizeof(SlotHeader));
      add(segment->slot(rank, step), 256);
    }
    for (int to = 0; to < 3; ++to) {
      add(&segment->channel(rank, to), sizeof(ChannelState));
      for (uint64_t index = 0; index < Segment::kChannelSlots; ++index) {
        add(&segment->channel_header(rank, to, index), sizeof(SlotHeader));
        add(segment->channel_slot(rank, to, index), 256);
      }
    }
  }
  std::byte* end = nullptr;
  for (const auto& [begin, bytes] : parts) {
    EXPECT_GE(begin, end);
    end = begin + bytes;
  }
  *(end - 1) = std::byte{1};  // is mapped
}

TEST(Segment, CannotBeReachedByAnotherAddress) {
  const auto segment = Segment::Create(2, 256);
  std::string guessed = segment->address();
  guessed.back() = guessed.back() == '0' ? '1' : '0';
  ExpectRefused(guessed, "that is another file");
  ExpectRefused("1/2", "is no address");
  // No process has this number.
  ExpectRefused("999999999/3/" + std::string(32, 'a'), "another process namespace");
  const std::string address = segment->address();
  segment->close_entrance();
  ExpectRefused(address, "cannot share memory");
}

TEST(Segment, IsPrivateNamelessAndOfFixedSize) {
  const auto count = [] {
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      ++files;
    return files;
  };
  const size_t before = count();
  const auto segment = Segment::Create(2, 256);
  EXPECT_EQ(count(), before);
  int pid = 0, file = 0;
  ASSERT_EQ(std::sscanf(segment->address().c_str(), "%d/%d/", &pid, &file), 2);
  struct stat facts = {};
  ASSERT_EQ(fstat(file, &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_NE(ftruncate(file, 0), 0);
  EXPECT_NE(ftruncate(file, facts.st_size * 2), 0);
}

TEST(Segment, RefusesGroupsThatAreTooLarge) {
  EXPECT_THROW(Segment::Create(kMaxRanks + 1, 256), CommError);
  EXPECT_THROW(Segment::Create(0, 256), CommError);
  EXPECT_NO_THROW(Segment::Create(kMaxRanks, 64 << 10));
}

}  // namespace
}  // namespace anvil::comm
