// SPDX-License-Identifier: Apache-2.0
#include "board.h"

#include <cstring>

namespace anvil::comm {
namespace {

constexpr const char* kNames[] = {"all_reduce",     "reduce",     "all_gather",
                                  "reduce_scatter", "broadcast",  "gather",
                                  "scatter",        "all_to_all", "barrier"};

SlotHeader HeaderOf(const Agreement& agreement) {
  SlotHeader header{};
  header.words[0] = static_cast<uint64_t>(agreement.operation);
  header.words[1] = agreement.bytes;
  header.words[2] = static_cast<uint64_t>(agreement.root + 1);
  header.words[3] =
      static_cast<uint64_t>(agreement.type) << 8 | static_cast<uint64_t>(agreement.op);
  return header;
}

std::string Describe(const SlotHeader& header) {
  const auto operation = static_cast<Operation>(header.words[0]);
  std::string text = NameOf(operation);
  if (operation == Operation::kBarrier) return text;
  if (operation != Operation::kAllToAll)
    text += " of " + std::to_string(header.words[1]) + " bytes";
  if (header.words[2] != 0) text += " with root " + std::to_string(header.words[2] - 1);
  if (operation == Operation::kAllReduce || operation == Operation::kReduce ||
      operation == Operation::kReduceScatter) {
    text += std::string(", the ") + NameOf(static_cast<ReduceOp>(header.words[3] & 0xff)) + " of " +
            NameOf(static_cast<DataType>(header.words[3] >> 8));
  }
  return text;
}

}  // namespace

const char* NameOf(Operation operation) { return kNames[static_cast<int>(operation)]; }

Call Board::Begin(const Agreement& agreement, Milliseconds timeout) {
  header_ = HeaderOf(agreement);
  return member_.Begin(NameOf(agreement.operation), timeout);
}

std::byte* Board::Open(const Call& call) {
  const Segment& segment = member_.segment();
  const auto reads = [&](int peer) {
    return segment.rank(peer).consumed.load(std::memory_order_seq_cst) + Segment::kSlots <= next_;
  };
  const auto unread = [&] {
    for (int peer = 0; peer < member_.size(); ++peer) {
      if (peer != member_.rank() && reads(peer)) return false;
    }
    return true;
  };
  member_.Await(call, unread, reads);
  segment.slot_header(member_.rank(), next_) = header_;
  return segment.slot(member_.rank(), next_);
}

uint64_t Board::Publish() {
  const uint64_t step = next_++;
  member_.segment().rank(member_.rank()).published.store(next_, std::memory_order_seq_cst);
  member_.RingAll();
  return step;
}

const std::byte* Board::Read(const Call& call, int rank, uint64_t step) {
  const Segment& segment = member_.segment();
  const RankState& state = segment.rank(rank);
  const auto missing = [&](int peer) {
    return peer == rank && state.published.load(std::memory_order_seq_cst) <= step;
  };
  member_.Await(call, [&] { return !missing(rank); }, missing);
  const SlotHeader& theirs = segment.slot_header(rank, step);
  if (std::memcmp(&theirs, &header_, sizeof(SlotHeader)) != 0) {
    throw member_.Fail(call, "it is " + Describe(header_) + " here, but " + Describe(theirs) +
                                 " on rank " + std::to_string(rank) +
                                 "; all ranks must run the same collectives in the same order");
  }
  return segment.slot(rank, step);
}

void Board::Finish(uint64_t step) {
  member_.segment().rank(member_.rank()).consumed.store(step + 1, std::memory_order_seq_cst);
  member_.RingAll();
}

}  // namespace anvil::comm
