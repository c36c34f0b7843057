// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, in order, through a few slots for each pair and direction.
#pragma once

#include <span>
#include <vector>

#include "member.h"

namespace anvil::comm {

// One message to or from a rank.
struct Transfer {
  enum Kind : uint8_t { kSend, kReceive };
  Kind kind;
  int peer;
  void* data;  // not written where it is sent
  size_t bytes;
  uint64_t tag = 0;
};

class Channels {
 public:
  explicit Channels(Member& member) : member_(member) {}

  // Carries out all transfers, in any order but those with one rank in one direction, which keep
  // theirs. So ranks that send to each other before they receive do not wait in a circle. A send
  // may be done before the message is received. Throws where a message has another size or tag than
  // its receiver expects.
  void Exchange(const Call& call, std::span<const Transfer> transfers);

 private:
  struct Progress {
    const Transfer* transfer;
    size_t done = 0;
    bool finished = false;
  };
  bool MayMove(const Transfer& transfer) const;
  void Move(const Call& call, Progress& progress);
  void Send(Progress& progress);
  void Receive(const Call& call, Progress& progress);
  bool MoveAll(const Call& call, std::vector<Progress>& all);
  static bool IsBehind(const std::vector<Progress>& all, size_t index);

  Member& member_;
};

}  // namespace anvil::comm
