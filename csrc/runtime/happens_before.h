// SPDX-License-Identifier: Apache-2.0
// The order that submissions, events and waits establish between the streams of a process.
#pragma once

#include <vector>

#include "vector_clock.h"

namespace anvil::sanitizer {

// The host has one clock for the whole process, not one for each thread: what any thread has waited
// for lies behind every submission that follows. Threads hand work to each other by means that
// nobody tells us of (locks, queues, the GIL), and what has been waited for has run in any case, so
// that this can miss a lack of order between host threads but never make one up.
class HappensBefore {
 public:
  // A command is submitted: it comes after the stream's earlier ones and what the host waited for.
  Epoch Submit(uint32_t stream) {
    VectorClock& clock = BehindHost(stream);
    return clock.Advance(stream);
  }
  // What an event has behind it that is recorded on the stream now.
  VectorClock Record(uint32_t stream) { return BehindHost(stream); }
  void StreamWaits(uint32_t stream, const VectorClock& clock) { BehindHost(stream).Join(clock); }
  void HostWaits(const VectorClock& clock) { host_.Join(clock); }
  void HostWaitsFor(uint32_t stream) { host_.Join(Of(stream)); }

  // Thread `runner` (numbered from 1; 0: one that runs none) has run a command that had `clock`
  // behind it. What it frees from then on, such as what the command kept alive, comes after that.
  void Ran(uint32_t runner, const VectorClock& clock) {
    if (runner >= runners_.size()) runners_.resize(size_t{runner} + 1);
    runners_[runner].Join(clock);
  }

  // What is behind the stream's next command.
  const VectorClock& Of(uint32_t stream) {
    if (stream >= streams_.size()) streams_.resize(size_t{stream} + 1);
    return streams_[stream];
  }
  // What is behind memory that thread `runner` frees now, and that is used again only after what
  // was submitted to `streams` so far.
  VectorClock Free(uint32_t runner, const std::vector<uint32_t>& streams) {
    VectorClock clock = host_;
    if (runner < runners_.size()) clock.Join(runners_[runner]);
    for (const uint32_t stream : streams) clock.Join(Of(stream));
    return clock;
  }

 private:
  VectorClock& BehindHost(uint32_t stream) {
    Of(stream);
    streams_[stream].Join(host_);
    return streams_[stream];
  }

  VectorClock host_;
  std::vector<VectorClock> streams_;
  std::vector<VectorClock> runners_;
};

}  // namespace anvil::sanitizer
