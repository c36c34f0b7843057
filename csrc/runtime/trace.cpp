// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "anvil/runtime.h"
#include "command.h"
#include "device.h"
#include "error.h"
#include "process.h"
#include "stream.h"

namespace anvil {
namespace {

// Of the whole process; executors of several devices and submitters write to it.
struct Spans {
  std::mutex mutex;
  std::vector<anvilTraceSpan> kept;
  size_t capacity = 0;
  uint64_t dropped = 0;
};

// Never destroyed: executors run until the process is gone.
Spans& AllSpans() {
  static Spans* const spans = new Spans;
  return *spans;
}

// Runs that enclose the current one on this thread: a graph's, around its nodes'.
thread_local constinit uint32_t depth = 0;

uint64_t Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

constinit std::atomic<bool> TracedRun::tracing{false};

void TracedRun::Begin(const char* name) {
  name_ = name;
  ++depth;
  begin_ = Now();
}

void TracedRun::End() {
  anvilTraceSpan span{};
  span.end_nanoseconds = Now();
  span.begin_nanoseconds = begin_;
  span.depth = --depth;
  if (running_stream != nullptr) {
    span.device = running_stream->device->index;
    span.stream = running_stream->id;
  }
  std::strncpy(span.name, name_ != nullptr ? name_ : "unnamed", sizeof(span.name) - 1);
  Spans& spans = AllSpans();
  std::lock_guard lock(spans.mutex);
  if (spans.kept.size() < spans.capacity) {
    spans.kept.push_back(span);
  } else {
    ++spans.dropped;
  }
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilTraceStart(size_t capacity) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    Spans& spans = AllSpans();
    std::lock_guard lock(spans.mutex);
    std::vector<anvilTraceSpan> fresh;
    fresh.reserve(capacity);  // now, and not while commands wait for it
    spans.kept.swap(fresh);
    spans.capacity = capacity;
    spans.dropped = 0;
    TracedRun::tracing.store(true, std::memory_order_relaxed);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilTraceStop(void) {
  return Guarded([] {
    if (IsForkedChild()) return FailForked();
    TracedRun::tracing.store(false, std::memory_order_relaxed);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilTraceTake(anvilTraceSpan* taken, size_t capacity, size_t* count,
                            uint64_t* dropped) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (count == nullptr) return FailNull("anvilTraceTake", "count");
    if (dropped == nullptr) return FailNull("anvilTraceTake", "dropped");
    if (taken == nullptr && capacity > 0) return FailNull("anvilTraceTake", "spans");
    Spans& spans = AllSpans();
    std::lock_guard lock(spans.mutex);
    *count = spans.kept.size();
    *dropped = spans.dropped;
    const auto end =
        spans.kept.begin() + static_cast<std::ptrdiff_t>(std::min(capacity, spans.kept.size()));
    std::copy(spans.kept.begin(), end, taken);
    spans.kept.erase(spans.kept.begin(), end);
    return ANVIL_SUCCESS;
  });
}
