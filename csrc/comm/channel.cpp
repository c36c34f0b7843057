// SPDX-License-Identifier: Apache-2.0
#include "channel.h"

#include <algorithm>
#include <cstring>

namespace anvil::comm {

// Both counters are read with the order that Await wants; this rank's own one as well, for brevity.
bool Channels::MayMove(const Transfer& transfer) const {
  const bool sends = transfer.kind == Transfer::kSend;
  const ChannelState& channel = sends ? member_.segment().channel(member_.rank(), transfer.peer)
                                      : member_.segment().channel(transfer.peer, member_.rank());
  const uint64_t taken = channel.taken.load(std::memory_order_seq_cst);
  const uint64_t sent = channel.sent.load(std::memory_order_seq_cst);
  return sends ? sent < taken + Segment::kChannelSlots : sent > taken;
}

void Channels::Send(Progress& progress) {
  const Transfer& transfer = *progress.transfer;
  const Segment& segment = member_.segment();
  ChannelState& channel = segment.channel(member_.rank(), transfer.peer);
  const uint64_t index = channel.sent.load(std::memory_order_relaxed);
  const size_t bytes = std::min(segment.slot_bytes(), transfer.bytes - progress.done);
  segment.channel_header(member_.rank(), transfer.peer,
                         index) = {{transfer.bytes, transfer.tag, progress.done, 0}};
  if (bytes > 0) {
    std::memcpy(segment.channel_slot(member_.rank(), transfer.peer, index),
                static_cast<const std::byte*>(transfer.data) + progress.done, bytes);
  }
  progress.done += bytes;
  channel.sent.store(index + 1, std::memory_order_seq_cst);
}

void Channels::Receive(const Call& call, Progress& progress) {
  const Transfer& transfer = *progress.transfer;
  const Segment& segment = member_.segment();
  ChannelState& channel = segment.channel(transfer.peer, member_.rank());
  const uint64_t index = channel.taken.load(std::memory_order_relaxed);
  const SlotHeader& header = segment.channel_header(transfer.peer, member_.rank(), index);
  if (header.words[0] != transfer.bytes || header.words[1] != transfer.tag) {
    throw member_.Fail(
        call, "rank " + std::to_string(transfer.peer) + " sends " +
                  std::to_string(header.words[0]) + " bytes with tag " +
                  std::to_string(header.words[1]) + ", where " + std::to_string(transfer.bytes) +
                  " bytes with tag " + std::to_string(transfer.tag) +
                  " are expected; messages from one rank to another arrive in order");
  }
  const size_t bytes = std::min(segment.slot_bytes(), transfer.bytes - progress.done);
  if (bytes > 0) {
    std::memcpy(static_cast<std::byte*>(transfer.data) + progress.done,
                segment.channel_slot(transfer.peer, member_.rank(), index), bytes);
  }
  progress.done += bytes;
  channel.taken.store(index + 1, std::memory_order_seq_cst);
}

// Moves one slot's worth. An empty message takes a slot as well.
void Channels::Move(const Call& call, Progress& progress) {
  if (progress.transfer->kind == Transfer::kSend) {
    Send(progress);
  } else {
    Receive(call, progress);
  }
  progress.finished = progress.done == progress.transfer->bytes;
  member_.Ring(progress.transfer->peer);
}

bool Channels::IsBehind(const std::vector<Progress>& all, size_t index) {
  const Transfer& transfer = *all[index].transfer;
  return std::any_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(index),
                     [&](const Progress& before) {
                       return !before.finished && before.transfer->kind == transfer.kind &&
                              before.transfer->peer == transfer.peer;
                     });
}

// Whether anything moved.
bool Channels::MoveAll(const Call& call, std::vector<Progress>& all) {
  bool moved = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].finished || !MayMove(*all[i].transfer) || IsBehind(all, i)) continue;
    Move(call, all[i]);
    moved = true;
  }
  return moved;
}

void Channels::Exchange(const Call& call, std::span<const Transfer> transfers) {
  std::vector<Progress> all;
  all.reserve(transfers.size());
  for (const Transfer& transfer : transfers) all.push_back({&transfer});
  const auto unfinished = [&](const Progress& each) { return !each.finished; };
  while (std::any_of(all.begin(), all.end(), unfinished)) {
    if (MoveAll(call, all)) continue;
    const auto movable = [&] {
      return std::any_of(all.begin(), all.end(), [&](const Progress& each) {
        return !each.finished && MayMove(*each.transfer);
      });
    };
    const auto waits_for = [&](int rank) {
      return std::any_of(all.begin(), all.end(), [&](const Progress& each) {
        return !each.finished && each.transfer->peer == rank && !MayMove(*each.transfer);
      });
    };
    member_.Await(call, movable, waits_for);
  }
}

}  // namespace anvil::comm
