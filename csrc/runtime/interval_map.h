// SPDX-License-Identifier: Apache-2.0
// A value for each byte of the address space, kept by ranges of bytes with equal values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace anvil::sanitizer {

// Bytes outside all ranges have the value T{}. T can be copied and compared.
template <typename T>
class IntervalMap {
 public:
  // Calls visit(begin, end, T& value) for the pieces of [begin, end), in order, gaps included;
  // what it leaves in `value` becomes the piece's.
  template <typename Visit>
  void Update(uintptr_t begin, uintptr_t end, Visit&& visit) {
    if (begin >= end) return;
    Split(begin);
    Split(end);
    for (uintptr_t at = begin; at < end;) {
      auto next = ranges_.lower_bound(at);
      if (next == ranges_.end() || next->first != at) {
        const uintptr_t gap_end = next == ranges_.end() || next->first > end ? end : next->first;
        next = ranges_.emplace_hint(next, at, Range{gap_end, T{}});
      }
      visit(at, next->second.end, next->second.value);
      at = next->second.end;
    }
    Merge(begin, end);
  }

  void Assign(uintptr_t begin, uintptr_t end, T value) {
    if (begin >= end) return;
    Split(begin);
    Split(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    ranges_.emplace(begin, Range{end, std::move(value)});
    Merge(begin, end);
  }

  // Calls visit(begin, end, const T& value) for the ranges that overlap [begin, end), cut to it.
  template <typename Visit>
  void ForEach(uintptr_t begin, uintptr_t end, Visit&& visit) const {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != ranges_.end() && at->first < end; ++at) {
      visit(at->first < begin ? begin : at->first, at->second.end > end ? end : at->second.end,
            at->second.value);
    }
  }

  size_t size() const { return ranges_.size(); }

 private:
  struct Range {
    uintptr_t end;
    T value;
  };
  using Iterator = typename std::map<uintptr_t, Range>::iterator;

  // Makes `at` a boundary of the range it lies in.
  void Split(uintptr_t at) {
    auto next = ranges_.lower_bound(at);
    if (next == ranges_.begin()) return;
    Range& before = std::prev(next)->second;
    if (before.end <= at) return;
    ranges_.emplace_hint(next, at, Range{before.end, before.value});
    before.end = at;
  }

  // Joins equal neighbours in [begin, end] and at its ends; drops those that are T{}.
  void Merge(uintptr_t begin, uintptr_t end) {
    auto at = ranges_.lower_bound(begin);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first <= end) {
      if (at->second.value == T{}) {
        at = ranges_.erase(at);
        continue;
      }
      const auto next = std::next(at);
      if (next == ranges_.end() || next->first != at->second.end ||
          !(next->second.value == at->second.value)) {
        at = next;
        continue;
      }
      at->second.end = next->second.end;
      ranges_.erase(next);
    }
  }

  std::map<uintptr_t, Range> ranges_;  // by begin; disjoint
};

}  // namespace anvil::sanitizer
