// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <mutex>
#include <vector>

#include "completion.h"
#include "device.h"
#include "error.h"
#include "graph.h"
#include "graph_pool.h"
#include "process.h"
#include "sanitizer.h"

namespace anvil {

struct ReleaseGraph {
  void operator()(anvilGraph_t graph) const { graph->Release(); }
};
using OwnedGraph = std::unique_ptr<anvilGraph_st, ReleaseGraph>;

struct Capture {
  anvilStream_t origin = nullptr;
  std::shared_ptr<GraphPool> pool;
  OwnedGraph graph;  // null: the capture is over
  std::vector<anvilStream_t> streams;
  std::string failure;  // why there will be no graph; empty: nothing has gone wrong

  bool over() const { return graph == nullptr; }
};

namespace {

// Guards all captures and who takes part. No command is run or released under it.
std::mutex& Lock() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

anvilError_t FailWith(std::string_view words) { return Fail(ANVIL_ERROR_CAPTURE, words); }

void SetFailure(Capture* capture, std::string_view words) {
  if (capture != nullptr && !capture->over() && capture->failure.empty()) capture->failure = words;
}

void Join(const std::shared_ptr<Capture>& capture, anvilStream_t stream) {
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->capturing.store(true, std::memory_order_release);
}

anvilError_t FailFailed(const Capture& capture) {
  return FailWith("The capture on " + Describe(capture.origin) + " failed: " + capture.failure);
}

// Ends the capture: its graph, which may have to be released without the lock.
OwnedGraph End(Capture* capture) {
  for (anvilStream_t stream : capture->streams) {
    stream->capturing.store(false, std::memory_order_release);
    stream->capture.reset();
  }
  capture->pool.reset();
  return std::move(capture->graph);
}

// Why the wait cannot be part of a capture; empty: it can, and has been made so.
std::string JoinByWait(anvilStream_t stream, const std::shared_ptr<Capture>& recorded_in,
                       const Completion* completion) {
  if (recorded_in == nullptr) {
    if (completion == nullptr || completion->done()) return "";
    return Describe(stream) +
           " is being captured and cannot wait for an event that was recorded outside and has not "
           "been reached: a replay would not wait for it. Synchronize before the capture.";
  }
  if (recorded_in->over()) {
    return "The event was recorded in a capture that is over, where it marks nothing that " +
           Describe(stream) + " could wait for. Record it again, behind the graph's launch.";
  }
  if (stream->capture == recorded_in) return "";
  if (stream->capture != nullptr) {
    return Describe(stream) + " cannot wait for an event of another capture than its own.";
  }
  if (InsideCommand()) return "A command cannot wait for an event that was recorded in a capture.";
  if (stream->device != recorded_in->origin->device) {
    return Describe(stream) + " cannot join the capture on " + Describe(recorded_in->origin) +
           ": a graph runs on one device.";
  }
  Join(recorded_in, stream);
  return "";
}

}  // namespace

bool CaptureLocked(anvilStream_t stream, const anvilCommand& command, anvilGraph_t graph,
                   anvilError_t* status) {
  CommandOwner owner(command);
  {
    std::lock_guard lock(Lock());
    Capture* const capture = stream->capture.get();
    if (capture == nullptr) {  // ended meanwhile
      owner.HandOver();
      return false;
    }
    if (!capture->failure.empty()) {
      *status = FailFailed(*capture);
      return true;
    }
    capture->graph->Add(command, stream->id, graph);
    owner.HandOver();
  }
  sanitizer::Captured(command);
  *status = ANVIL_SUCCESS;
  return true;
}

std::shared_ptr<Capture> CaptureOf(anvilStream_t stream) {
  if (!stream->capturing.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(Lock());
  return stream->capture;
}

GraphPool* CapturingPool(anvilStream_t stream) {
  if (!stream->capturing.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(Lock());
  return stream->capture != nullptr ? stream->capture->pool.get() : nullptr;
}

anvilError_t FailCapture(const std::shared_ptr<Capture>& capture, std::string_view words) {
  std::lock_guard lock(Lock());
  SetFailure(capture.get(), words);
  return FailWith(words);
}

anvilError_t CheckNotCapturing(anvilStream_t stream) {
  const std::shared_ptr<Capture> capture = CaptureOf(stream);
  if (capture == nullptr) return ANVIL_SUCCESS;
  return FailCapture(capture, Describe(stream) +
                                  " is being captured: nothing runs on it that could be waited "
                                  "for, and it cannot be destroyed. End the capture first.");
}

anvilError_t WaitInCapture(anvilStream_t stream, const std::shared_ptr<Capture>& recorded_in,
                           const Completion* completion) {
  std::lock_guard lock(Lock());
  const std::string obstacle = JoinByWait(stream, recorded_in, completion);
  if (obstacle.empty()) return ANVIL_SUCCESS;
  SetFailure(stream->capture.get(), obstacle);
  SetFailure(recorded_in.get(), obstacle);
  return FailWith(obstacle);
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilStreamBeginCapture(anvilStream_t stream, anvilGraphPool_t pool) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamBeginCapture", "stream");
    if (pool == nullptr) return FailNull("anvilStreamBeginCapture", "pool");
    if (InsideCommand()) return FailWith("A command cannot begin a capture.");
    if (pool->pool->device() != stream->device) {
      return Fail(ANVIL_ERROR_INVALID_VALUE,
                  Describe(stream) + " cannot be captured with a graph pool of device " +
                      std::to_string(pool->pool->device()->index) + ".");
    }
    const auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->pool = pool->pool;
    capture->graph.reset(new anvilGraph_st(stream->device, pool->pool));
    std::lock_guard lock(Lock());
    if (stream->capture != nullptr) return FailWith(Describe(stream) + " is captured already.");
    Join(capture, stream);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilStreamEndCapture(anvilStream_t stream, anvilGraph_t* graph) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamEndCapture", "stream");
    if (graph == nullptr) return FailNull("anvilStreamEndCapture", "graph");
    *graph = nullptr;
    OwnedGraph ended;  // if it is not wanted, released without the lock
    std::lock_guard lock(Lock());
    const std::shared_ptr<Capture> capture = stream->capture;
    if (capture == nullptr) return FailWith(Describe(stream) + " is not being captured.");
    if (capture->origin != stream) {
      SetFailure(capture.get(), "it was ended on " + Describe(stream) + ", which only joined it.");
      return FailWith("The capture that " + Describe(stream) + " takes part in ends on " +
                      Describe(capture->origin) + ", where it began.");
    }
    ended = End(capture.get());
    if (!capture->failure.empty()) return FailFailed(*capture);
    ended->Seal();
    *graph = ended.release();
    return ANVIL_SUCCESS;
  });
}

int anvilStreamIsCapturing(anvilStream_t stream) {
  if (stream == nullptr || IsForkedChild()) return 0;
  return stream->capturing.load(std::memory_order_acquire) ? 1 : 0;
}

anvilError_t anvilStreamFailCapture(anvilStream_t stream, const char* reason) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamFailCapture", "stream");
    if (reason == nullptr) return FailNull("anvilStreamFailCapture", "reason");
    const std::shared_ptr<Capture> capture = CaptureOf(stream);
    if (capture != nullptr) return FailCapture(capture, reason);
    return Fail(ANVIL_ERROR_INVALID_VALUE, Describe(stream) + " is not being captured.");
  });
}
