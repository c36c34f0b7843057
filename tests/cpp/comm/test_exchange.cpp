// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks.
#include "ranks.h"

namespace anvil::comm {
namespace {

class Exchange : public RanksTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Exchange, kSettings, SettingName);

TEST_P(Exchange, EveryoneWithEveryoneAtOnce) {
  Run([](Group& group) {
    for (const size_t bytes : {0, 1, 1000, 1024, 1025, 100000}) {
      std::vector<std::vector<unsigned char>> sent;
      std::vector<Guarded> received;
      std::vector<Transfer> transfers;
      // Two messages each way, of different sizes.
      for (int message = 0; message < 2; ++message) {
        for (int peer = 0; peer < group.size(); ++peer) {
          const size_t size = bytes / static_cast<size_t>(message + 1);
          sent.push_back(BytesOf(group.rank(), size, static_cast<unsigned>(peer + 10 * message)));
          received.emplace_back(size);
        }
      }
      for (int message = 0; message < 2; ++message) {
        for (int peer = 0; peer < group.size(); ++peer) {
          if (peer == group.rank()) continue;
          const size_t i = static_cast<size_t>(message * group.size() + peer);
          const uint64_t tag = static_cast<uint64_t>(message);
          transfers.push_back({Transfer::kSend, peer, sent[i].data(), sent[i].size(), tag});
          transfers.push_back(
              {Transfer::kReceive, peer, received[i].data(), received[i].size(), tag});
        }
      }
      group.Exchange("batch", transfers, kPatience);
      for (int message = 0; message < 2; ++message) {
        for (int peer = 0; peer < group.size(); ++peer) {
          if (peer == group.rank()) continue;
          const size_t i = static_cast<size_t>(message * group.size() + peer);
          ASSERT_EQ(received[i].values(),
                    BytesOf(peer, received[i].size(),
                            static_cast<unsigned>(group.rank() + 10 * message)));
          EXPECT_TRUE(received[i].IsIntact());
        }
      }
    }
  });
}

TEST_P(Exchange, RoundTheRingBetweenCollectives) {
  Run([](Group& group) {
    if (group.size() == 1) return;
    const int next = (group.rank() + 1) % group.size();
    const int last = (group.rank() + group.size() - 1) % group.size();
    for (int round = 0; round < 50; ++round) {
      auto message = BytesOf(group.rank(), 3000, static_cast<unsigned>(round));
      Guarded received(3000);
      const Transfer send{Transfer::kSend, next, message.data(), message.size()};
      const Transfer receive{Transfer::kReceive, last, received.data(), received.size()};
      // One rank sends first.
      group.Exchange("send", {group.rank() == 0 ? &send : &receive, 1}, kPatience);
      group.Exchange("recv", {group.rank() == 0 ? &receive : &send, 1}, kPatience);
      ASSERT_EQ(received.values(), BytesOf(last, 3000, static_cast<unsigned>(round)));
      group.Barrier(kPatience);
    }
  });
}

// A message that fits into the slots needs no receiver.
TEST_P(Exchange, AShortMessageIsSentBeforeItIsReceived) {
  Run([](Group& group) {
    if (group.size() == 1) return;
    const int peer = group.rank() ^ 1;
    if (peer >= group.size()) return;
    auto message = BytesOf(group.rank(), 4 * kSmallSlot);
    Guarded received(message.size());
    const Transfer send{Transfer::kSend, peer, message.data(), message.size()};
    const Transfer receive{Transfer::kReceive, peer, received.data(), received.size()};
    group.Exchange("send", {&send, 1}, kPatience);
    group.Exchange("recv", {&receive, 1}, kPatience);
    ASSERT_EQ(received.values(), BytesOf(peer, message.size()));
  });
}

}  // namespace
}  // namespace anvil::comm
