// SPDX-License-Identifier: Apache-2.0
// Messages in pieces that a slot can hold.
#pragma once

#include <algorithm>
#include <cstddef>

#include "shared_group.h"

namespace anvil::comm {

struct Piece {
  size_t offset;
  size_t bytes;
};

// What is left of `total` bytes for round `round`, at most `capacity`.
inline Piece PieceOf(size_t total, size_t capacity, size_t round) {
  const size_t offset = std::min(total, round * capacity);
  return {offset, std::min(capacity, total - offset)};
}

inline size_t Rounds(size_t total, size_t capacity) { return (total + capacity - 1) / capacity; }

inline const void* At(const void* data, const Piece& piece) {
  return piece.bytes == 0 ? data : static_cast<const std::byte*>(data) + piece.offset;
}
inline void* At(void* data, const Piece& piece) {
  return const_cast<void*>(At(static_cast<const void*>(data), piece));
}

template <typename Publish, typename Collect>
void SharedGroup::InRounds(size_t rounds, const Publish& publish, const Collect& collect) {
  uint64_t step = rounds > 0 ? publish(size_t{0}) : 0;
  for (size_t round = 0; round < rounds; ++round) {
    const uint64_t next = round + 1 < rounds ? publish(round + 1) : 0;
    collect(round, step);
    board_.Finish(step);
    step = next;
  }
}

}  // namespace anvil::comm
