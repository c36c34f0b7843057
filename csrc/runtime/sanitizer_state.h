// SPDX-License-Identifier: Apache-2.0
// All that the stream sanitizer knows, in terms of the runtime's handles. Guarded by its mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "access_history.h"
#include "anvil/runtime.h"
#include "happens_before.h"
#include "pinned_guard.h"
#include "sanitizer_report.h"

namespace anvil::sanitizer {

class State {
 public:
  std::mutex mutex;
  HappensBefore order;
  AccessHistory history;
  PinnedGuard pinned;
  std::unordered_map<uint64_t, VectorClock> running;  // behind what was submitted, by ticket
  // Of the call in progress.
  Findings findings;
  PinnedGuard::Changes changes;

  // A copy for good.
  const std::string* Text(std::string text) { return &*texts_.insert(std::move(text)).first; }
  uint32_t Number(anvilStream_t stream);
  // The calling thread among those that run commands; 0: it has run none.
  static uint32_t Runner();
  uint32_t MakeRunner();

  void RememberFree(const Life& life);
  void RememberCapture(const std::string& node, const Access& access, const std::string* where);
  void ReportStaleGraph(const std::string& node, const void* block, uint64_t generation);
  // Turns what the call in progress found into reports.
  void Report();
  Reports& reports() { return reports_; }

 private:
  using Moment = std::pair<const void*, uint64_t>;              // a block at a generation
  using Node = std::tuple<std::string, const void*, uint64_t>;  // by its name and what it uses

  std::map<std::pair<int, uint64_t>, uint32_t> streams_;  // by device and id
  std::vector<std::string> stream_names_;
  std::unordered_set<std::string> texts_;  // names and places
  uint32_t runners_ = 0;
  std::map<Moment, const std::string*> frees_;  // where they were
  std::deque<Moment> frees_in_order_;
  std::map<Node, const std::string*> captures_;
  Reports reports_{&stream_names_};
};

}  // namespace anvil::sanitizer
