// SPDX-License-Identifier: Apache-2.0
// Runs a body once for each rank of a group, in threads or in processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exchange_group.h"
#include "shared_group.h"

namespace anvil::comm {

using std::chrono::seconds;
using RankBody = std::function<void(Group& group)>;

inline constexpr Milliseconds kPatience = seconds(60);

// Slots small enough for messages of a few KiB to take several steps.
inline constexpr size_t kSmallSlot = 1024;

inline SharedGroup::Options TestOptions(Milliseconds timeout = kPatience) {
  return {"test", timeout, -1};
}

// Collectives made of messages, which another group carries.
class MessageGroup final : public ExchangeGroup {
 public:
  explicit MessageGroup(Group& carrier)
      : ExchangeGroup(carrier.rank(), carrier.size()), carrier_(carrier) {}
  void Exchange(const char* name, std::span<const Transfer> transfers,
                Milliseconds timeout) override {
    carrier_.Exchange(name, transfers, timeout);
  }
  void Abort() override { carrier_.Abort(); }

 private:
  Group& carrier_;
};

inline void RunInThreads(int ranks, size_t slot_bytes, const RankBody& body) {
  const std::shared_ptr<Segment> segment = Segment::Create(ranks, slot_bytes);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        SharedGroup group(segment, rank, TestOptions());
        body(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The processes of a group. Each attaches as processes do, through the address.
class Processes {
 public:
  Processes(int ranks, size_t slot_bytes, const RankBody& body)
      : segment_(Segment::Create(ranks, slot_bytes)) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::fflush(nullptr);  // or the child writes it again
      const pid_t child = fork();
      if (child == 0) _exit(RunRank(rank, body));
      children_.push_back(child);
    }
  }
  ~Processes() {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    }
  }

  void Kill(int rank) { kill(children_[static_cast<size_t>(rank)], SIGKILL); }
  // Exit status; 128 + n for signal n.
  int Wait(int rank) {
    int status = 0;
    waitpid(std::exchange(children_[static_cast<size_t>(rank)], 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int RunRank(int rank, const RankBody& body) {
    try {
      SharedGroup group(Segment::Attach(segment_->address()), rank, TestOptions());
      body(group);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
    return testing::Test::HasFailure() ? 1 : 0;
  }

  const std::shared_ptr<Segment> segment_;
  std::vector<pid_t> children_;
};

inline void RunInProcesses(int ranks, size_t slot_bytes, const RankBody& body) {
  Processes processes(ranks, slot_bytes, body);
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(processes.Wait(rank), 0) << "rank " << rank;
}

enum class Ranks { kThreads, kProcesses, kMessages };

struct Setting {
  Ranks kind;
  int ranks;
};

inline std::string SettingName(const testing::TestParamInfo<Setting>& info) {
  return std::to_string(info.param.ranks) +
         std::string(info.param.kind == Ranks::kThreads     ? "Threads"
                     : info.param.kind == Ranks::kProcesses ? "Processes"
                                                            : "ThreadsByMessages");
}

// A test whose body runs in each rank.
class RanksTest : public testing::TestWithParam<Setting> {
 protected:
  static void Run(const RankBody& body, size_t slot_bytes = kSmallSlot) {
    if (GetParam().kind == Ranks::kMessages) {
      RunInThreads(GetParam().ranks, slot_bytes, [&body](Group& carrier) {
        MessageGroup group(carrier);
        body(group);
      });
    } else if (GetParam().kind == Ranks::kThreads) {
      RunInThreads(GetParam().ranks, slot_bytes, body);
    } else {
      RunInProcesses(GetParam().ranks, slot_bytes, body);
    }
  }
};

inline const auto kSettings = testing::Values(
    Setting{Ranks::kThreads, 1}, Setting{Ranks::kThreads, 2}, Setting{Ranks::kThreads, 3},
    Setting{Ranks::kThreads, 4}, Setting{Ranks::kProcesses, 2}, Setting{Ranks::kProcesses, 3},
    Setting{Ranks::kProcesses, 4}, Setting{Ranks::kMessages, 1}, Setting{Ranks::kMessages, 3});

// The bytes of `rank`, different for each and each `salt`.
inline std::vector<unsigned char> BytesOf(int rank, size_t bytes, unsigned salt = 0) {
  std::vector<unsigned char> values(bytes);
  uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(rank + 1) + salt * 977u + bytes;
  for (unsigned char& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<unsigned char>(state >> 56);
  }
  return values;
}

// Memory with a guard before and behind it.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : memory_(bytes + 2 * kGuard, kMark) {}
  unsigned char* data() { return memory_.data() + kGuard; }
  size_t size() const { return memory_.size() - 2 * kGuard; }
  std::vector<unsigned char> values() const {
    return {memory_.begin() + kGuard, memory_.end() - kGuard};
  }
  Buffer buffer() { return {data(), size()}; }
  void Fill(const std::vector<unsigned char>& values) {
    std::copy(values.begin(), values.end(), memory_.begin() + kGuard);
  }
  bool IsIntact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory_[i] != kMark || memory_[memory_.size() - 1 - i] != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kMark = 0xa5;
  std::vector<unsigned char> memory_;
};

}  // namespace anvil::comm
