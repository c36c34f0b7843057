// SPDX-License-Identifier: Apache-2.0
// The hooks and entry points of the stream sanitizer: from the runtime's handles to numbers and
// texts, under one lock.
#include "sanitizer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "error.h"
#include "memory_source.h"
#include "process.h"
#include "sanitizer_state.h"

namespace anvil::sanitizer {

std::atomic<bool> enabled{false};

struct Clock {
  VectorClock at;
};

namespace {

std::atomic<anvilCallSiteFn> call_site{nullptr};

// Never destroyed: memory is freed during static destruction, too.
State& TheState() {
  static State& state = *new State;
  return state;
}

// Where the calling thread is. Called without a lock: it may have to wait for the GIL, whose holder
// may be on its way to a hook.
std::string Here() {
  char text[256] = "";
  if (const auto function = call_site.load()) function(text, sizeof text);
  text[sizeof text - 1] = '\0';
  return text;
}

// Runs body(state). The sanitizer must not take the program down: without memory it gives up.
template <typename Body>
void Hook(Body&& body) noexcept {
  try {
    State& state = TheState();
    std::lock_guard lock(state.mutex);
    body(state);
    state.Report();
  } catch (const std::exception& error) {
    enabled.store(false, std::memory_order_relaxed);
    std::fprintf(stderr, "anvil sanitizer: off from here on: %s\n", error.what());
  }
}

Access Describe(const anvilAccess& given) {
  Access access;
  access.begin = reinterpret_cast<uintptr_t>(given.ptr);
  access.end = access.begin + given.bytes;
  access.writes = (given.flags & ANVIL_ACCESS_WRITE) != 0;
  access.block = given.block;
  if (given.block != nullptr) {
    access.generation = anvilBlockGeneration(given.block);
  } else {
    access.pinned = anvilHostIsPinned(given.ptr) != 0;
  }
  return access;
}

const char* NameOf(const anvilCommand& command) { return command.name ? command.name : "unnamed"; }

}  // namespace

void Enable() {
  TheState();
  enabled.store(true, std::memory_order_relaxed);
}

namespace detail {

void Submitted(anvilStream_t stream, const anvilCommand& command, uint64_t ticket) {
  const std::string where = Here();
  // Before the lock: these calls have locks of their own, under which hooks are called.
  std::vector<Access> accesses;
  std::vector<PinnedGuard::Range> reads, writes;
  for (size_t i = 0; i < command.access_count; ++i) {
    const anvilAccess& given = command.accesses[i];
    const Access access = Describe(given);
    if (access.begin == access.end) continue;
    // Other host memory is not looked at: nobody says when it is freed and becomes something else.
    if (access.block == nullptr && !access.pinned && OwnerOf(given.ptr) < 0) continue;
    accesses.push_back(access);
    if (!access.pinned) continue;
    if ((given.flags & ANVIL_ACCESS_READ) != 0) reads.push_back({access.begin, access.end});
    if (access.writes) writes.push_back({access.begin, access.end});
  }
  Hook([&](State& state) {
    const uint32_t number = state.Number(stream);
    const Use use{state.order.Submit(number), state.Text(NameOf(command)), state.Text(where)};
    const VectorClock& behind = state.order.Of(number);
    for (const Access& access : accesses) {
      state.history.Touch(access, use, behind, &state.findings);
    }
    state.running.emplace(ticket, behind);
    state.pinned.Submitted(ticket, use, reads, writes);
  });
}

void Starting(uint64_t ticket) {
  Hook([&](State& state) { state.pinned.Starting(ticket, &state.changes); });
}

void Finished(uint64_t ticket) {
  Hook([&](State& state) {
    state.pinned.Finished(ticket, &state.changes);
    const auto found = state.running.find(ticket);
    if (found == state.running.end()) return;
    state.order.Ran(state.MakeRunner(), found->second);
    state.running.erase(found);
  });
}

void Captured(const anvilCommand& command) {
  const std::string where = Here();
  std::vector<Access> accesses;
  for (size_t i = 0; i < command.access_count; ++i) {
    if (command.accesses[i].block != nullptr) accesses.push_back(Describe(command.accesses[i]));
  }
  Hook([&](State& state) {
    const std::string* text = state.Text(where);
    for (const Access& access : accesses) {
      state.RememberCapture(NameOf(command), access, text);
    }
  });
}

Clock* Recorded(anvilStream_t stream) {
  Clock* clock = nullptr;
  Hook([&](State& state) { clock = new Clock{state.order.Record(state.Number(stream))}; });
  return clock;
}

void Release(Clock* clock) { delete clock; }

void StreamWaits(anvilStream_t stream, const Clock* clock) {
  Hook([&](State& state) { state.order.StreamWaits(state.Number(stream), clock->at); });
}

void HostWaits(const Clock* clock) {
  Hook([&](State& state) { state.order.HostWaits(clock->at); });
}

void HostWaitsFor(anvilStream_t stream) {
  Hook([&](State& state) { state.order.HostWaitsFor(state.Number(stream)); });
}

void Allocated(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream) {
  const std::string where = Here();
  const uint64_t generation = anvilBlockGeneration(block);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(ptr);
  Hook([&](State& state) {
    Use use{{kHost, 0}, state.Text("allocation"), state.Text(where)};
    if (stream != nullptr) {
      const uint32_t number = state.Number(stream);
      use.epoch = {number, state.order.Of(number).At(number)};
    }
    state.history.Allocate(block, generation, begin, begin + bytes, use);
  });
}

void Freed(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream) {
  const std::string where = Here();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(ptr);
  Hook([&](State& state) {
    Use use{{kHost, 0}, state.Text("free"), state.Text(where)};
    if (stream != nullptr) use.epoch.stream = state.Number(stream);
    const Life* known = state.history.Find(block);
    const VectorClock behind = state.order.Free(
        State::Runner(), known != nullptr ? known->streams : std::vector<uint32_t>{});
    const auto life = state.history.Free(block, begin, begin + bytes, use, behind, &state.findings);
    if (life != nullptr) state.RememberFree(*life);
    if (block == nullptr) state.pinned.Freed({begin, begin + bytes});
  });
}

void BlockRecorded(anvilBlock_t block, anvilStream_t stream) {
  Hook([&](State& state) { state.history.Record(block, state.Number(stream)); });
}

void FreeDeferred(anvilBlock_t block) {
  const std::string where = Here();
  Hook([&](State& state) {
    state.history.DeferFree(block, {{kHost, 0}, state.Text("free"), state.Text(where)});
    if (const Life* life = state.history.Find(block)) state.RememberFree(*life);
  });
}

void StaleGraph(const char* node, anvilBlock_t block, uint64_t generation) {
  Hook([&](State& state) {
    state.ReportStaleGraph(node != nullptr ? node : "unnamed", block, generation);
  });
}

}  // namespace detail
}  // namespace anvil::sanitizer

using namespace anvil;

int anvilSanitizerEnabled(void) { return sanitizer::Enabled() ? 1 : 0; }

anvilError_t anvilSanitizerSetCallSite(anvilCallSiteFn function) {
  if (IsForkedChild()) return FailForked();
  sanitizer::call_site.store(function);
  return ANVIL_SUCCESS;
}

anvilError_t anvilSanitizerSetSignalCallSite(anvilSignalSafeCallSiteFn function) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    sanitizer::PinnedPages::Get().SetCallSite(function);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilSanitizerTakeReports(char* text, size_t capacity, size_t* size, uint64_t* count) {
  return Guarded([&] {
    if (text == nullptr && capacity > 0) return FailNull("anvilSanitizerTakeReports", "text");
    if (size == nullptr) return FailNull("anvilSanitizerTakeReports", "size");
    if (count == nullptr) return FailNull("anvilSanitizerTakeReports", "count");
    if (IsForkedChild()) return FailForked();
    sanitizer::State& state = sanitizer::TheState();
    std::lock_guard lock(state.mutex);
    state.Report();
    const std::string& all = state.reports().text();
    *size = all.size() + 1;
    *count = state.reports().count();
    if (capacity == 0) return ANVIL_SUCCESS;
    const size_t length = std::min(all.size(), capacity - 1);
    std::memcpy(text, all.data(), length);
    text[length] = '\0';
    if (length == all.size()) state.reports().Clear();
    return ANVIL_SUCCESS;
  });
}
