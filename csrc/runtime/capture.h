// SPDX-License-Identifier: Apache-2.0
// Captures: streams whose submissions become the nodes of a graph instead of being run.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "anvil/runtime.h"
#include "stream.h"

namespace anvil {

class Completion;

// One capture, from its begin to its end and on as long as an event remembers it.
struct Capture;

// Takes the command if the stream is being captured; `*status` is then the submission's result.
// `graph`: the one that the command replays, or null.
bool CaptureLocked(anvilStream_t stream, const anvilCommand& command, anvilGraph_t graph,
                   anvilError_t* status);
inline bool CaptureCommand(anvilStream_t stream, const anvilCommand& command, anvilGraph_t graph,
                           anvilError_t* status) {
  return stream->capturing.load(std::memory_order_acquire) &&
         CaptureLocked(stream, command, graph, status);
}

// The capture that the stream takes part in, or null.
std::shared_ptr<Capture> CaptureOf(anvilStream_t stream);

// Makes the capture, unless it is over, fail with these words, and the calling thread as well.
anvilError_t FailCapture(const std::shared_ptr<Capture>& capture, std::string_view words);

// For what cannot be done to a stream while it is captured: then the capture fails, too.
anvilError_t CheckNotCapturing(anvilStream_t stream);

// A wait that touches a capture: that of the stream, or that in which the event was recorded, or
// both. Order within one capture is there anyway; a stream outside joins; the rest fails.
// `completion`: the event's, if it was recorded outside captures.
anvilError_t WaitInCapture(anvilStream_t stream, const std::shared_ptr<Capture>& recorded_in,
                           const Completion* completion);

}  // namespace anvil
