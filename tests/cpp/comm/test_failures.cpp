// SPDX-License-Identifier: Apache-2.0
// What the other ranks hear when one cannot go on.
#include <filesystem>

#include "ranks.h"

namespace anvil::comm {
namespace {

using namespace std::chrono_literals;

void AllReduce(Group& group, size_t count, Milliseconds timeout = kPatience) {
  std::vector<float> values(count, 1.0f);
  group.AllReduce(values.data(), values.data(), count, DataType::kFloat32, ReduceOp::kSum, timeout);
}

// That `call` throws, with each of `words` in its message.
template <typename Call>
void ExpectError(const Call& call, const std::vector<std::string>& words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(Failures, ARankThatIsKilledIsNamedByTheOthers) {
  Processes processes(3, kSmallSlot, [](Group& group) {
    if (group.rank() == 1) {
      AllReduce(group, 100);
      pause();
    }
    // The first message is small, those that follow have many steps.
    AllReduce(group, 100);
    for (int rank = 0; rank < 2; ++rank) {
      ExpectError([&] { AllReduce(group, 1 << 20); }, {"all_reduce on rank", "rank 1", "has died"});
    }
  });
  std::this_thread::sleep_for(200ms);
  processes.Kill(1);
  EXPECT_EQ(processes.Wait(1), 128 + SIGKILL);
  EXPECT_EQ(processes.Wait(0), 0);
  EXPECT_EQ(processes.Wait(2), 0);
}

TEST(Failures, ARankThatIsKilledWhileItWorks) {
  Processes processes(2, kSmallSlot, [](Group& group) {
    const auto work = [&] {
      for (;;) AllReduce(group, 10000);
    };
    if (group.rank() == 0) work();
    ExpectError(work, {"all_reduce on rank 1 of group 'test': rank 0 (process", "has died"});
  });
  std::this_thread::sleep_for(100ms);
  processes.Kill(0);
  EXPECT_EQ(processes.Wait(1), 0);
}

TEST(Failures, AReceiverNamesASenderThatDied) {
  Processes processes(2, kSmallSlot, [](Group& group) {
    if (group.rank() == 1) pause();
    unsigned char byte;
    const Transfer receive{Transfer::kReceive, 1, &byte, 1};
    ExpectError([&] { group.Exchange("recv", {&receive, 1}, kPatience); },
                {"recv on rank 0", "rank 1", "has died"});
  });
  std::this_thread::sleep_for(100ms);
  processes.Kill(1);
  EXPECT_EQ(processes.Wait(0), 0);
}

TEST(Failures, ARankThatDoesNotComeIsNamedWhenTheTimeIsUp) {
  RunInThreads(3, kSmallSlot, [](Group& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(500ms);
      // Those that gave up have done their part of this one, and say so to whoever comes later.
      AllReduce(group, 10);
      ExpectError([&] { AllReduce(group, 10); }, {"has given up", "within 0.1 s"});
      return;
    }
    const auto late = [&] { AllReduce(group, 10, 100ms); };
    if (group.rank() == 0) {
      ExpectError(late, {"all_reduce on rank 0 of group 'test'", "rank 2 did not do its part"});
    } else {
      EXPECT_THROW(late(), CommError);
    }
    ExpectError(late, {"the group has failed before"});
    std::this_thread::sleep_for(600ms);
  });
}

TEST(Failures, OneWhoSharesASegmentAlone) {
  try {
    SharedGroup group(Segment::Create(2, kSmallSlot), 0, TestOptions(50ms));
    FAIL();
  } catch (const CommTimeout& error) {
    EXPECT_NE(std::string(error.what()).find("joining on rank 0 of group 'test': rank 1 did not"),
              std::string::npos)
        << error.what();
  }
}

TEST(Failures, ARankThatHasLeft) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    AllReduce(group, 10);
    if (group.rank() == 1) return;
    ExpectError([&] { group.Barrier(kPatience); }, {"barrier", "rank 1 has left the group"});
  });
}

TEST(Failures, DifferentCollectives) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    if (group.rank() == 0) {
      ExpectError([&] { AllReduce(group, 10); },
                  {"it is all_reduce of 40 bytes, the sum of float32 here, but barrier on rank 1"});
    } else {
      ExpectError([&] { group.Barrier(kPatience); }, {"barrier on rank 1", "all_reduce of 40"});
    }
  });
}

TEST(Failures, DifferentSizes) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    const size_t count = group.rank() == 0 ? 10 : 10000;
    ExpectError([&] { AllReduce(group, count); }, {"of 40 bytes", "of 40000 bytes"});
  });
}

TEST(Failures, MessagesOfAnotherSize) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    unsigned char bytes[8] = {};
    const bool sends = group.rank() == 0;
    const Transfer transfer{sends ? Transfer::kSend : Transfer::kReceive, 1 - group.rank(), bytes,
                            sends ? size_t{8} : size_t{4}};
    const auto exchange = [&] { group.Exchange("recv", {&transfer, 1}, kPatience); };
    if (sends) {
      exchange();
    } else {
      ExpectError(exchange, {"rank 0 sends 8 bytes", "where 4 bytes"});
    }
  });
}

TEST(Failures, AllToAllThatDoesNotFit) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    unsigned char bytes[16] = {};
    const size_t expected = group.rank() == 0 ? 4 : 8;
    const ConstBuffer inputs[] = {{bytes, 8}, {bytes, 8}};
    const Buffer outputs[] = {{bytes + 8, group.rank() == 0 ? 8 : expected},
                              {bytes + 8, group.rank() == 0 ? expected : 8}};
    const auto call = [&] { group.AllToAll(inputs, outputs, kPatience); };
    if (group.rank() == 0) {
      ExpectError(call, {"rank 1 sends 8 bytes, where 4 are expected"});
      return;
    }
    // Rank 1 gets what it expects, or hears that rank 0 has given up.
    try {
      call();
    } catch (const CommError&) {
    }
  });
}

TEST(Failures, AnAbortEndsAWait) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    if (group.rank() == 1) {
      ExpectError(
          [&] {
            AllReduce(group, 10);
            std::this_thread::sleep_for(50ms);
            AllReduce(group, 10);
          },
          {"all_reduce on rank 1"});
      return;
    }
    AllReduce(group, 10);
    std::thread other([&] {
      std::this_thread::sleep_for(100ms);
      group.Abort();
    });
    const Transfer receive{Transfer::kReceive, 1, nullptr, 0};
    ExpectError([&] { group.Exchange("recv", {&receive, 1}, kPatience); }, {"was aborted"});
    other.join();
  });
}

TEST(Failures, AnAverageOfBoolIsRefused) {
  RunInThreads(2, kSmallSlot, [](Group& group) {
    bool value = true;
    ExpectError(
        [&] { group.AllReduce(&value, &value, 1, DataType::kBool, ReduceOp::kAverage, kPatience); },
        {"there is no average of bool"});
  });
}

}  // namespace
}  // namespace anvil::comm
