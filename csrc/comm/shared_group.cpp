// SPDX-License-Identifier: Apache-2.0
// The collectives that move bytes; those that reduce are in shared_reduce.cpp.
#include "shared_group.h"

#include <algorithm>
#include <cstring>

#include "shared_rounds.h"

namespace anvil::comm {
namespace {

uint64_t SumOf(std::span<const Buffer> buffers) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes;
  return bytes;
}

}  // namespace

SharedGroup::SharedGroup(std::shared_ptr<Segment> segment, int rank, const Options& options)
    : Group(rank, segment->ranks()),
      member_(std::move(segment), rank, options.name, options.timeout),
      board_(member_),
      channels_(member_),
      copier_(options.device) {}

// What all ranks' slots take together should stay in the cache; a part should be worth a step.
size_t SharedGroup::SlotBytes(int ranks, int workers) {
  const size_t for_workers = (size_t{128} << 10) * static_cast<size_t>(std::clamp(workers, 1, 4));
  const size_t for_ranks = (size_t{8} << 10) * static_cast<size_t>(ranks);
  return std::max(for_workers, for_ranks);
}

size_t SharedGroup::PartBytes() const {
  return board_.slot_bytes() / static_cast<size_t>(std::max(size() - 1, 1)) / kLine * kLine;
}

size_t SharedGroup::PartOffset(int writer, int reader) const {
  return static_cast<size_t>(reader < writer ? reader : reader - 1) * PartBytes();
}

void SharedGroup::AllGather(ConstBuffer input, std::span<const Buffer> outputs,
                            Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kAllGather, SumOf(outputs)}, timeout);
  const size_t slot = board_.slot_bytes();
  size_t longest = 0;
  for (const Buffer& output : outputs) longest = std::max(longest, output.bytes);
  const auto publish = [&](size_t round) {
    const Piece piece = PieceOf(input.bytes, slot, round);
    if (size() == 1 || (piece.bytes == 0 && round > 0)) return board_.Pass();
    copier_.CopyIn(board_.Open(call), At(input.data, piece), piece.bytes, input.bytes);
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    for (int from = 0; from < size(); ++from) {
      const Buffer& output = outputs[static_cast<size_t>(from)];
      const Piece piece = PieceOf(output.bytes, slot, round);
      // Of the first round all are read, for what they say of the operation.
      if (piece.bytes == 0 && round > 0) continue;
      const void* source = is_me(from) ? At(input.data, piece) : board_.Read(call, from, step);
      copier_.CopyOut(At(output.data, piece), source, piece.bytes, output.bytes);
    }
  };
  InRounds(std::max<size_t>(Rounds(longest, slot), 1), publish, collect);
}

void SharedGroup::Broadcast(Buffer data, int root, Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kBroadcast, data.bytes, root}, timeout);
  const size_t slot = board_.slot_bytes();
  const auto publish = [&](size_t round) {
    if (!is_me(root) || size() == 1) return board_.Pass();
    const Piece piece = PieceOf(data.bytes, slot, round);
    copier_.CopyIn(board_.Open(call), At(data.data, piece), piece.bytes, data.bytes);
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    if (is_me(root)) return;
    const Piece piece = PieceOf(data.bytes, slot, round);
    copier_.CopyOut(At(data.data, piece), board_.Read(call, root, step), piece.bytes, data.bytes);
  };
  InRounds(std::max<size_t>(Rounds(data.bytes, slot), 1), publish, collect);
}

void SharedGroup::Gather(ConstBuffer input, std::span<const Buffer> outputs, int root,
                         Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kGather, input.bytes, root}, timeout);
  const size_t slot = board_.slot_bytes();
  const auto publish = [&](size_t round) {
    if (is_me(root)) return board_.Pass();
    const Piece piece = PieceOf(input.bytes, slot, round);
    copier_.CopyIn(board_.Open(call), At(input.data, piece), piece.bytes, input.bytes);
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    if (!is_me(root)) return;
    const Piece piece = PieceOf(input.bytes, slot, round);
    for (int from = 0; from < size(); ++from) {
      const void* source = is_me(from) ? At(input.data, piece) : board_.Read(call, from, step);
      copier_.CopyOut(At(outputs[static_cast<size_t>(from)].data, piece), source, piece.bytes,
                      input.bytes);
    }
  };
  InRounds(std::max<size_t>(Rounds(input.bytes, slot), 1), publish, collect);
}

void SharedGroup::Scatter(std::span<const ConstBuffer> inputs, Buffer output, int root,
                          Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kScatter, output.bytes, root}, timeout);
  const size_t part = PartBytes();
  const auto publish = [&](size_t round) {
    if (!is_me(root) || size() == 1) return board_.Pass();
    const Piece piece = PieceOf(output.bytes, part, round);
    std::byte* const slot = board_.Open(call);
    for (int to = 0; to < size(); ++to) {
      if (is_me(to)) continue;
      copier_.CopyIn(slot + PartOffset(root, to), At(inputs[static_cast<size_t>(to)].data, piece),
                     piece.bytes, output.bytes);
    }
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    const Piece piece = PieceOf(output.bytes, part, round);
    const void* source = is_me(root) ? At(inputs[static_cast<size_t>(root)].data, piece)
                                     : board_.Read(call, root, step) + PartOffset(root, rank());
    copier_.CopyOut(At(output.data, piece), source, piece.bytes, output.bytes);
  };
  InRounds(std::max<size_t>(Rounds(output.bytes, part), 1), publish, collect);
}

void SharedGroup::AllToAll(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                           Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kAllToAll}, timeout);
  // First what each rank sends to each, from which all know how many rounds there are.
  const size_t ranks = static_cast<size_t>(size());
  uint64_t mine[kMaxRanks];
  uint64_t longest = 0;
  for (size_t to = 0; to < ranks; ++to) mine[to] = inputs[to].bytes;
  std::memcpy(board_.Open(call), mine, ranks * sizeof(uint64_t));
  const uint64_t first = board_.Publish();
  for (int from = 0; from < size(); ++from) {
    uint64_t sizes[kMaxRanks];
    const void* source =
        is_me(from) ? static_cast<const void*>(mine) : board_.Read(call, from, first);
    std::memcpy(sizes, source, ranks * sizeof(uint64_t));
    longest = std::max(longest, *std::max_element(sizes, sizes + ranks));
    const uint64_t theirs = sizes[rank()], expected = outputs[static_cast<size_t>(from)].bytes;
    if (theirs == expected) continue;
    throw member_.Fail(call, "rank " + std::to_string(from) + " sends " + std::to_string(theirs) +
                                 " bytes, where " + std::to_string(expected) + " are expected");
  }
  board_.Finish(first);

  const size_t part = PartBytes();
  const auto publish = [&](size_t round) {
    if (size() == 1) return board_.Pass();
    std::byte* const slot = board_.Open(call);
    for (int to = 0; to < size(); ++to) {
      const ConstBuffer& input = inputs[static_cast<size_t>(to)];
      const Piece piece = PieceOf(input.bytes, part, round);
      if (is_me(to) || piece.bytes == 0) continue;
      copier_.CopyIn(slot + PartOffset(rank(), to), At(input.data, piece), piece.bytes,
                     input.bytes);
    }
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    for (int from = 0; from < size(); ++from) {
      const Buffer& output = outputs[static_cast<size_t>(from)];
      const Piece piece = PieceOf(output.bytes, part, round);
      if (piece.bytes == 0) continue;
      const void* source = is_me(from) ? At(inputs[static_cast<size_t>(from)].data, piece)
                                       : board_.Read(call, from, step) + PartOffset(from, rank());
      copier_.CopyOut(At(output.data, piece), source, piece.bytes, output.bytes);
    }
  };
  InRounds(Rounds(longest, part), publish, collect);
}

void SharedGroup::Exchange(const char* name, std::span<const Transfer> transfers,
                           Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  channels_.Exchange(member_.Begin(name, timeout), transfers);
}

void SharedGroup::Barrier(Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call = board_.Begin({Operation::kBarrier}, timeout);
  board_.Open(call);
  const uint64_t step = board_.Publish();
  for (int other = 0; other < size(); ++other) {
    if (!is_me(other)) board_.Read(call, other, step);
  }
  board_.Finish(step);
}

}  // namespace anvil::comm
