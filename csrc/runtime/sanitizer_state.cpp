// SPDX-License-Identifier: Apache-2.0
#include "sanitizer_state.h"

namespace anvil::sanitizer {
namespace {

constexpr size_t kFreesRemembered = size_t{1} << 16;  // for graphs that turn out stale

thread_local uint32_t runner = 0;

}  // namespace

uint32_t State::Number(anvilStream_t stream) {
  const std::pair key{anvilStreamDevice(stream), anvilStreamId(stream)};
  const auto [entry, added] = streams_.try_emplace(key, static_cast<uint32_t>(streams_.size()));
  if (added) {
    stream_names_.push_back("stream " + std::to_string(key.second) + " of device " +
                            std::to_string(key.first));
  }
  return entry->second;
}

uint32_t State::Runner() { return runner; }

uint32_t State::MakeRunner() {
  if (runner == 0) runner = ++runners_;
  return runner;
}

void State::RememberFree(const Life& life) {
  const Moment moment{life.block, life.generation};
  if (!frees_.emplace(moment, life.freed.where).second) return;
  frees_in_order_.push_back(moment);
  if (frees_.size() <= kFreesRemembered) return;
  frees_.erase(frees_in_order_.front());
  frees_in_order_.pop_front();
}

void State::RememberCapture(const std::string& node, const Access& access,
                            const std::string* where) {
  captures_.try_emplace({node, access.block, access.generation}, where);
}

void State::ReportStaleGraph(const std::string& node, const void* block, uint64_t generation) {
  const auto captured = captures_.find({node, block, generation});
  const auto freed = frees_.find({block, generation});
  reports_.AddStaleGraph(node, captured == captures_.end() ? nullptr : captured->second,
                         freed == frees_.end() ? nullptr : freed->second);
}

void State::Report() {
  pinned.Collect(&changes);
  for (const Finding& finding : findings) reports_.Add(finding);
  for (const PinnedGuard::Change& change : changes) {
    reports_.AddPinnedChange(change.range.begin, change.range.end, change.reader,
                             change.seen ? change.where.c_str() : nullptr);
  }
  findings.clear();
  changes.clear();
}

}  // namespace anvil::sanitizer
