// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pinned_guard.h"

namespace anvil::sanitizer {
namespace {

using Range = PinnedGuard::Range;

TEST(Checksum, ChangesWithEveryByteAndWithTheLength) {
  std::mt19937 random(3);
  for (size_t size : {1, 7, 8, 9, 31, 32, 33, 64, 100}) {
    std::vector<unsigned char> bytes(size);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const uint64_t before = Checksum(bytes.data(), size);
    for (size_t at = 0; at < size; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[at] ^= static_cast<unsigned char>(1 << bit);
        ASSERT_NE(Checksum(bytes.data(), size), before) << size << " bytes, byte " << at;
        bytes[at] ^= static_cast<unsigned char>(1 << bit);
      }
    }
    ASSERT_EQ(Checksum(bytes.data(), size), before);
    ASSERT_NE(Checksum(bytes.data(), size - 1), before);
  }
}

// Four pages, and what the guard says of them.
class PinnedGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory =
        mmap(nullptr, 4 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = static_cast<volatile unsigned char*>(memory);
    PinnedPages::Get().SetCallSite(
        [](char* text, size_t capacity) { std::strncpy(text, "writer.py:3 in fill", capacity); });
  }
  void TearDown() override {
    PinnedPages::Get().SetCallSite(nullptr);
    guard_.Freed(Whole());
    munmap(const_cast<unsigned char*>(memory_), 4 * page_);
  }

  Range Bytes(size_t begin, size_t count) const {
    const uintptr_t base = reinterpret_cast<uintptr_t>(memory_);
    return {base + begin, base + begin + count};
  }
  Range Whole() const { return Bytes(0, 4 * page_); }

  void Submit(uint64_t ticket, std::vector<Range> reads, std::vector<Range> writes = {}) {
    guard_.Submitted(ticket, {{0, ticket}, &name_, &place_}, reads, writes);
  }
  void Run(uint64_t ticket) {
    guard_.Starting(ticket, &changes_);
    guard_.Finished(ticket, &changes_);
  }

  // "seen 5 of 1" or "unseen of 1": which byte, which ticket; of all changes since the last call.
  std::string Changes() {
    guard_.Collect(&changes_);
    std::string all;
    for (const PinnedGuard::Change& change : changes_) {
      const uintptr_t at = change.range.begin - reinterpret_cast<uintptr_t>(memory_);
      if (!all.empty()) all += ", ";
      all += change.seen ? "seen " + std::to_string(at) + " (" + change.where + ")" : "unseen";
      all += " of " + std::to_string(change.reader.epoch.number);
    }
    changes_.clear();
    return all;
  }

  size_t page_ = 0;
  volatile unsigned char* memory_ = nullptr;
  PinnedGuard guard_;
  PinnedGuard::Changes changes_;
  const std::string name_ = "memcpy", place_ = "reader.py:1 in step";
};

TEST_F(PinnedGuardTest, SeesTheWriterOfBytesThatAreQueued) {
  Submit(1, {Bytes(100, 50)});
  memory_[120] = 1;
  EXPECT_EQ(memory_[120], 1);  // let through
  EXPECT_EQ(Changes(), "seen 120 (writer.py:3 in fill) of 1");
  memory_[121] = 1;
  Run(1);
  EXPECT_EQ(Changes(), "");  // one report for each command
}

TEST_F(PinnedGuardTest, ReportsBeforeTheCommandIsForgotten) {
  Submit(1, {Bytes(0, 8)});
  memory_[7] = 1;
  Run(1);
  EXPECT_EQ(Changes(), "seen 7 (writer.py:3 in fill) of 1");
}

TEST_F(PinnedGuardTest, SeesEveryPageAndEveryReader) {
  Submit(1, {Bytes(0, 3 * page_)});
  Submit(2, {Bytes(page_, page_)});
  memory_[page_ + 1] = 1;
  const std::string changes = Changes();
  const std::string seen = "seen " + std::to_string(page_ + 1) + " (writer.py:3 in fill) of ";
  EXPECT_TRUE(changes == seen + "1, " + seen + "2" || changes == seen + "2, " + seen + "1")
      << changes;
  Run(1);
  Submit(3, {Bytes(page_, 1)});  // read-only again
  memory_[page_] = 1;
  EXPECT_EQ(Changes(), "seen " + std::to_string(page_) + " (writer.py:3 in fill) of 3");
  Run(2);
  Run(3);
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, LeavesOtherBytesOfThePageAlone) {
  Submit(1, {Bytes(100, 50)});
  memory_[99] = 1;
  memory_[150] = 1;
  Run(1);
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, ChecksumSeesWhatThePageDoesNot) {
  Submit(1, {Bytes(100, 50)});
  memory_[99] = 1;  // opens the page
  memory_[110] = 1;
  EXPECT_EQ(Changes(), "");
  Run(1);
  EXPECT_EQ(Changes(), "unseen of 1");
}

TEST_F(PinnedGuardTest, WritesAfterTheRunAreFine) {
  for (uint64_t ticket = 1; ticket < 4; ++ticket) {
    Submit(ticket, {Whole()});
    Run(ticket);
    memory_[0] = static_cast<unsigned char>(ticket);
    memory_[3 * page_] = 1;
  }
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, PagesStayReadOnlyUntilTheLastReaderHasRun) {
  Submit(1, {Bytes(0, 10)});
  Submit(2, {Bytes(20, 10)});
  Run(1);
  memory_[5] = 1;  // a neighbour by now
  EXPECT_EQ(Changes(), "");
  Run(2);
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, TheDevicesOwnWritesAreNoChange) {
  const auto write_as = [&](uint64_t ticket) {
    guard_.Starting(ticket, &changes_);
    memory_[10] = static_cast<unsigned char>(ticket);
    guard_.Finished(ticket, &changes_);
  };
  Submit(1, {}, {Bytes(0, 100)});  // to the host
  Submit(2, {Bytes(10, 10)});      // and back again
  write_as(1);
  Run(2);
  EXPECT_EQ(Changes(), "");
  // It may have started before the reader was queued.
  Submit(3, {}, {Bytes(0, 100)});
  guard_.Starting(3, &changes_);
  Submit(4, {Bytes(10, 10)});
  memory_[11] = 4;
  guard_.Finished(3, &changes_);
  // From here on the host is the only one who could write.
  memory_[12] = 5;
  Run(4);
  EXPECT_EQ(Changes(), "unseen of 4");
  // In place.
  Submit(5, {Bytes(0, 100)}, {Bytes(0, 100)});
  write_as(5);
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, MemoryMayBeFreedWhileItIsWatched) {
  Submit(1, {Whole()});
  Submit(2, {}, {Bytes(0, 8)});
  guard_.Freed(Whole());
  memory_[0] = 1;
  Submit(3, {Bytes(0, 10)});  // another owner
  Run(1);
  memory_[1] = 1;
  EXPECT_EQ(Changes(), "seen 1 (writer.py:3 in fill) of 3");
  Run(2);
  Run(3);
  EXPECT_EQ(Changes(), "");
}

TEST_F(PinnedGuardTest, SystemCallsAreRefusedNotReported) {
  Submit(1, {Bytes(0, 8)});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(read(ends[0], const_cast<unsigned char*>(memory_), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  Run(1);
  EXPECT_EQ(read(ends[0], const_cast<unsigned char*>(memory_), 1), 1);
  EXPECT_EQ(Changes(), "");
  close(ends[0]);
  close(ends[1]);
}

TEST_F(PinnedGuardTest, ManyThreadsMayWriteAtOnce) {
  for (uint64_t ticket = 1; ticket <= 50; ++ticket) {
    Submit(ticket, {Whole()});
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([this, thread] {
        for (size_t page = 0; page < 4; ++page) memory_[page * page_ + thread] = 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    Run(ticket);
    const std::string changes = Changes();
    ASSERT_TRUE(changes.starts_with("seen ")) << changes;
    ASSERT_TRUE(changes.ends_with(" of " + std::to_string(ticket))) << changes;
  }
}

using PinnedGuardDeathTest = PinnedGuardTest;

void WriteToNoMemory() {
  static volatile uintptr_t address = 16;  // out of the compiler's sight
  *reinterpret_cast<volatile int*>(address) = 1;
}

TEST_F(PinnedGuardDeathTest, OtherFaultsEndTheProcessAsBefore) {
  Submit(1, {Bytes(0, 8)});  // the handler is installed
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const auto ends = [](int status) { return status != 0; };  // they handle the signal themselves
#else
  const auto ends = testing::KilledBySignal(SIGSEGV);
#endif
  EXPECT_EXIT(WriteToNoMemory(), ends, "");
  EXPECT_EXIT(raise(SIGSEGV), ends, "");
  EXPECT_EXIT(
      {
        // A page that may not be written for a reason of its own.
        void* other = mmap(nullptr, page_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *static_cast<volatile int*>(other) = 1;
      },
      ends, "");
}

TEST_F(PinnedGuardDeathTest, TheHandlerBeforeIsCalledForOtherFaults) {
  const auto child = [this] {
    struct sigaction action{};
    action.sa_handler = [](int) {
      [[maybe_unused]] const auto written = write(2, "handler before\n", 15);
      _exit(3);
    };
    sigaction(SIGSEGV, &action, nullptr);
    Submit(1, {Bytes(0, 8)});
    memory_[0] = 1;
    if (Changes() != "seen 0 (writer.py:3 in fill) of 1") _exit(1);
    WriteToNoMemory();
  };
  // In a process of its own: the handler is installed at the first use.
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(child(), testing::ExitedWithCode(3), "handler before");
}

TEST_F(PinnedGuardDeathTest, ALaterHandlerLeavesTheChecksum) {
  const auto child = [this] {
    Submit(1, {Bytes(0, 8)});
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    Run(1);
    sigaction(SIGSEGV, &action, nullptr);
    Submit(2, {Bytes(0, 8)});
    memory_[0] = 1;
    Run(2);
    _exit(Changes() == "unseen of 2" ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace anvil::sanitizer
