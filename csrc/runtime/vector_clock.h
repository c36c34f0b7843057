// SPDX-License-Identifier: Apache-2.0
// Time as the stream sanitizer counts it: submissions of each stream, and what is behind them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace anvil::sanitizer {

// The n-th submission to a stream; streams are numbered in order of appearance. 0: before any.
struct Epoch {
  uint32_t stream = 0;
  uint64_t number = 0;

  bool operator==(const Epoch&) const = default;
};

// For every stream, how many of its submissions lie behind a point of the program.
class VectorClock {
 public:
  bool Covers(Epoch epoch) const { return At(epoch.stream) >= epoch.number; }

  uint64_t At(uint32_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }

  void Join(const VectorClock& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) {
      counts_[i] = std::max(counts_[i], other.counts_[i]);
    }
  }

  // One more submission to `stream`.
  Epoch Advance(uint32_t stream) {
    if (stream >= counts_.size()) counts_.resize(size_t{stream} + 1);
    return {stream, ++counts_[stream]};
  }

 private:
  std::vector<uint64_t> counts_;
};

}  // namespace anvil::sanitizer
