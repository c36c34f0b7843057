// SPDX-License-Identifier: Apache-2.0
// What the rest of the runtime tells the stream sanitizer (ANVIL_SANITIZE=1). Every hook is a test
// of one flag while it is off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "anvil/runtime.h"

namespace anvil::sanitizer {

extern std::atomic<bool> enabled;
inline bool Enabled() { return enabled.load(std::memory_order_relaxed); }

// Called once, before the first device exists.
void Enable();

// A stream's place in the order: a vector clock. Events carry one from stream to stream.
struct Clock;

namespace detail {
void Submitted(anvilStream_t stream, const anvilCommand& command, uint64_t ticket);
void Starting(uint64_t ticket);
void Finished(uint64_t ticket);
void Captured(const anvilCommand& command);
Clock* Recorded(anvilStream_t stream);
void Release(Clock* clock);
void StreamWaits(anvilStream_t stream, const Clock* clock);
void HostWaits(const Clock* clock);
void HostWaitsFor(anvilStream_t stream);
void Allocated(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream);
void Freed(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream);
void BlockRecorded(anvilBlock_t block, anvilStream_t stream);
void FreeDeferred(anvilBlock_t block);
void StaleGraph(const char* node, anvilBlock_t block, uint64_t generation);
}  // namespace detail

// Hooks may call into Python: no lock is held that a thread with the GIL may wait for.
//
// `ticket` numbers the submissions of the process. Submitted comes before the command can run,
// Starting right before it runs and Finished when it has run, before its destroy(), both on the
// thread that runs it. Work submitted inside a command is part of it and not told of.
inline void Submitted(anvilStream_t stream, const anvilCommand& command, uint64_t ticket) {
  if (Enabled()) detail::Submitted(stream, command, ticket);
}
inline void Starting(uint64_t ticket) {
  if (Enabled()) detail::Starting(ticket);
}
inline void Finished(uint64_t ticket) {
  if (Enabled()) detail::Finished(ticket);
}
// Instead of Submitted, for a command that becomes a node of a graph.
inline void Captured(const anvilCommand& command) {
  if (Enabled()) detail::Captured(command);
}
// The clock of an event record; owned by the caller, to be given back with Release. Null while off.
inline Clock* Recorded(anvilStream_t stream) {
  return Enabled() ? detail::Recorded(stream) : nullptr;
}
inline void Release(Clock* clock) {
  if (clock != nullptr) detail::Release(clock);
}
// A stream, or the host, is ordered behind an event or (by synchronisation, or a query that finds
// it complete) a stream.
inline void StreamWaits(anvilStream_t stream, const Clock* clock) {
  if (clock != nullptr) detail::StreamWaits(stream, clock);
}
inline void HostWaits(const Clock* clock) {
  if (clock != nullptr) detail::HostWaits(clock);
}
inline void HostWaitsFor(anvilStream_t stream) {
  if (Enabled()) detail::HostWaitsFor(stream);
}
// `stream`: the one in whose order the block lives; null for anvilMalloc's. A block whose free
// waits for other streams is Freed when it returns to its pool; FreeDeferred tells of the call of
// anvilFree. Pinned memory is Freed without a block, and not Allocated. Called by whoever takes the
// memory out of its pool or puts it back, before another can get it; anvilBlockGeneration is asked
// meanwhile.
inline void Allocated(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream) {
  if (Enabled()) detail::Allocated(block, ptr, bytes, stream);
}
inline void Freed(anvilBlock_t block, const void* ptr, size_t bytes, anvilStream_t stream) {
  if (Enabled()) detail::Freed(block, ptr, bytes, stream);
}
// The block's free will wait for what is submitted to `stream` before it.
inline void BlockRecorded(anvilBlock_t block, anvilStream_t stream) {
  if (Enabled()) detail::BlockRecorded(block, stream);
}
inline void FreeDeferred(anvilBlock_t block) {
  if (Enabled()) detail::FreeDeferred(block);
}
// A graph launch was refused because `block`, as it was at `generation`, has been freed.
inline void StaleGraph(const char* node, anvilBlock_t block, uint64_t generation) {
  if (Enabled()) detail::StaleGraph(node, block, generation);
}

}  // namespace anvil::sanitizer
