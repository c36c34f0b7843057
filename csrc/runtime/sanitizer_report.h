// SPDX-License-Identifier: Apache-2.0
// What the sanitizer found, in words: kept until it is asked for, each finding once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "access_history.h"

namespace anvil::sanitizer {

class Reports {
 public:
  // The name of each stream, by its number.
  explicit Reports(const std::vector<std::string>* streams) : streams_(streams) {}

  void Add(const Finding& finding);
  // Pinned memory [begin, end) that the queued command `reader` is to read was changed. `where`:
  // the writer's call site; null when it was not seen, only what it left.
  void AddPinnedChange(uintptr_t begin, uintptr_t end, const Use& reader, const char* where);
  // A graph was not launched. The texts may be null: not known.
  void AddStaleGraph(const std::string& node, const std::string* captured,
                     const std::string* freed);

  uint64_t count() const { return count_; }
  const std::string& text() const { return text_; }  // since the last Clear
  void Clear() { text_.clear(); }

 private:
  std::string Words(const Use& use, const char* verb) const;
  std::string Memory(const Finding& finding) const;
  std::string StreamName(uint32_t stream) const;
  void Print(const std::string& key, const std::string& text);

  const std::vector<std::string>* const streams_;
  std::unordered_set<std::string> known_;
  uint64_t count_ = 0;
  std::string text_;
};

}  // namespace anvil::sanitizer
