// SPDX-License-Identifier: Apache-2.0
// The collectives that reduce.
//
// A small message goes to everyone at once, and every rank reduces all of it: one exchange. A
// larger one is cut into chunks, and of each chunk every rank reduces a share: what it needs of the
// others' inputs is on the board one chunk ahead, and what it made is collected one chunk later.
#include "shared_group.h"
#include "shared_rounds.h"

namespace anvil::comm {
namespace {

// What every rank reads of others' inputs to reduce all by itself: for less, a second exchange
// would take longer.
constexpr size_t kAtOnceBytes = 64 << 10;

ReduceFn Function(DataType type, ReduceOp op) {
  const ReduceFn function = FindReduce(type, op);
  if (function == nullptr) {
    throw CommError(std::string("there is no ") + NameOf(op) + " of " + NameOf(type));
  }
  return function;
}

}  // namespace

struct SharedGroup::Reduction {
  const std::byte* input;
  std::byte* output;
  size_t count;
  DataType type;
  ReduceFn function;
  int root;          // below 0: all ranks want the result
  size_t per_share;  // elements of a rank's share of a chunk
  bool wanted;       // here

  size_t size() const { return SizeOf(type); }
  // Share `rank` of a chunk, of the whole.
  struct Share {
    size_t offset;  // bytes
    size_t count;
  };
  Share ShareOf(int ranks, size_t chunk, int rank) const {
    const size_t most = per_share * static_cast<size_t>(ranks);
    const size_t begin = chunk * most;
    const size_t elements = std::min(most, count - begin);
    const size_t first = ShareBegin(elements, ranks, rank);
    return {(begin + first) * size(), ShareBegin(elements, ranks, rank + 1) - first};
  }
};

void SharedGroup::AllReduce(const void* input, void* output, size_t count, DataType type,
                            ReduceOp op, Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call =
      board_.Begin({Operation::kAllReduce, count * SizeOf(type), -1, type, op}, timeout);
  Reduce(call, {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count, type,
                Function(type, op), -1, PartBytes() / SizeOf(type), true});
}

void SharedGroup::Reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                         int root, Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const Call call =
      board_.Begin({Operation::kReduce, count * SizeOf(type), root, type, op}, timeout);
  Reduce(call, {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count, type,
                Function(type, op), root, PartBytes() / SizeOf(type), is_me(root)});
}

void SharedGroup::Reduce(const Call& call, const Reduction& reduction) {
  if (size() == 1) {
    copier_.Copy(reduction.output, reduction.input, reduction.count * reduction.size());
    return;
  }
  const size_t most = std::min(kAtOnceBytes / static_cast<size_t>(size() - 1), board_.slot_bytes());
  if (reduction.count * reduction.size() <= most) {
    ReduceAtOnce(call, reduction);
  } else {
    ReduceInChunks(call, reduction);
  }
}

void SharedGroup::ReduceAtOnce(const Call& call, const Reduction& reduction) {
  const size_t bytes = reduction.count * reduction.size();
  copier_.CopyIn(board_.Open(call), reduction.input, bytes, bytes);
  const uint64_t step = board_.Publish();
  if (reduction.wanted) {
    const void* parts[kMaxRanks];
    for (int from = 0; from < size(); ++from) {
      parts[from] = is_me(from) ? reduction.input : board_.Read(call, from, step);
    }
    copier_.Reduce(reduction.function, reduction.type, reduction.output, parts, size(),
                   reduction.count);
  }
  board_.Finish(step);
}

// In the order: inputs of chunk 0; inputs of chunk i + 1, shares of chunk i, shares collected of
// chunk i - 1; and so on. All ranks publish in this order, and finish steps in that of publishing.
void SharedGroup::ReduceInChunks(const Call& call, const Reduction& reduction) {
  const size_t per_chunk = reduction.per_share * static_cast<size_t>(size());
  const size_t chunks = Rounds(reduction.count, per_chunk);
  uint64_t inputs = PublishInputs(call, reduction, 0);
  uint64_t shares = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const uint64_t next = chunk + 1 < chunks ? PublishInputs(call, reduction, chunk + 1) : 0;
    const uint64_t made = ReduceShare(call, reduction, chunk, inputs);
    if (chunk > 0) CollectShares(call, reduction, chunk - 1, shares);
    inputs = next;
    shares = made;
  }
  CollectShares(call, reduction, chunks - 1, shares);
}

uint64_t SharedGroup::PublishInputs(const Call& call, const Reduction& reduction, size_t chunk) {
  std::byte* const slot = board_.Open(call);
  for (int to = 0; to < size(); ++to) {
    if (is_me(to)) continue;
    const Reduction::Share share = reduction.ShareOf(size(), chunk, to);
    copier_.CopyIn(slot + PartOffset(rank(), to), reduction.input + share.offset,
                   share.count * reduction.size(), reduction.count * reduction.size());
  }
  return board_.Publish();
}

uint64_t SharedGroup::ReduceShare(const Call& call, const Reduction& reduction, size_t chunk,
                                  uint64_t step) {
  const Reduction::Share share = reduction.ShareOf(size(), chunk, rank());
  const void* parts[kMaxRanks];
  for (int from = 0; from < size(); ++from) {
    parts[from] = is_me(from) ? reduction.input + share.offset
                              : board_.Read(call, from, step) + PartOffset(from, rank());
  }
  const size_t bytes = share.count * reduction.size(), total = reduction.count * reduction.size();
  std::byte* const slot = board_.Open(call);
  std::byte* const result = reduction.output + share.offset;
  // What is to go past the cache is reduced in the cache first.
  const bool posted = reduction.wanted && Copier::IsPosted(total);
  copier_.Reduce(reduction.function, reduction.type, posted ? result : slot, parts, size(),
                 share.count);
  board_.Finish(step);
  if (posted) copier_.CopyIn(slot, result, bytes, total);
  const uint64_t made = board_.Publish();
  if (reduction.wanted && !posted) copier_.CopyOut(result, slot, bytes, total);
  return made;
}

void SharedGroup::CollectShares(const Call& call, const Reduction& reduction, size_t chunk,
                                uint64_t step) {
  for (int from = 0; reduction.wanted && from < size(); ++from) {
    if (is_me(from)) continue;
    const Reduction::Share share = reduction.ShareOf(size(), chunk, from);
    copier_.CopyOut(reduction.output + share.offset, board_.Read(call, from, step),
                    share.count * reduction.size(), reduction.count * reduction.size());
  }
  board_.Finish(step);
}

void SharedGroup::ReduceScatter(std::span<const ConstBuffer> inputs, void* output, DataType type,
                                ReduceOp op, Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  size_t total = 0, longest = 0;
  for (const ConstBuffer& input : inputs) {
    total += input.bytes;
    longest = std::max(longest, input.bytes);
  }
  const Call call = board_.Begin({Operation::kReduceScatter, total, -1, type, op}, timeout);
  const ReduceFn function = Function(type, op);
  const ConstBuffer& mine = inputs[static_cast<size_t>(rank())];
  const size_t part = PartBytes();
  const auto publish = [&](size_t round) {
    if (size() == 1) return board_.Pass();
    std::byte* const slot = board_.Open(call);
    for (int to = 0; to < size(); ++to) {
      const ConstBuffer& input = inputs[static_cast<size_t>(to)];
      const Piece piece = PieceOf(input.bytes, part, round);
      if (!is_me(to)) {
        copier_.CopyIn(slot + PartOffset(rank(), to), At(input.data, piece), piece.bytes, total);
      }
    }
    return board_.Publish();
  };
  const auto collect = [&](size_t round, uint64_t step) {
    const Piece piece = PieceOf(mine.bytes, part, round);
    const void* parts[kMaxRanks];
    for (int from = 0; from < size(); ++from) {
      parts[from] = is_me(from) ? At(mine.data, piece)
                                : board_.Read(call, from, step) + PartOffset(from, rank());
    }
    copier_.Reduce(function, type, At(output, piece), parts, size(), piece.bytes / SizeOf(type));
  };
  InRounds(std::max<size_t>(Rounds(longest, part), 1), publish, collect);
}

}  // namespace anvil::comm
