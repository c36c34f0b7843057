// SPDX-License-Identifier: Apache-2.0
// Streams: commands run in order, on the device's executor, or on the submitting thread before the
// submission returns (ANVIL_LAUNCH_BLOCKING=1, and inside a command).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "anvil/runtime.h"
#include "command.h"
#include "entry.h"

namespace anvil {

struct Capture;
class GraphPool;
struct Device;

// The first error since the last wait, kept for the next one.
struct PendingError {
  anvilError_t code = ANVIL_SUCCESS;
  std::string message;

  void Keep(anvilError_t error, const std::string& words);
  // Reports the error as the calling thread's and forgets it.
  anvilError_t Take();
};

}  // namespace anvil

struct anvilStream_st : std::enable_shared_from_this<anvilStream_st> {
  anvilStream_st(anvil::Device* device, uint64_t id, int priority)
      : device(device), id(id), priority(priority) {}

  anvil::Device* const device;
  const uint64_t id;
  const int priority;

  // Entries, counted before they are queued and after they have run.
  alignas(64) std::atomic<uint64_t> submitted{0};
  std::atomic<bool> capturing{false};  // takes part in a capture
  alignas(64) std::atomic<uint64_t> completed{0};
  anvil::EntryQueue queue;  // the executor's

  std::mutex order;  // held while a command runs on its submitter: submitters keep an order

  bool busy() const {
    // In this order, so that what is completed was submitted before.
    const uint64_t count = completed.load(std::memory_order_acquire);
    return count != submitted.load(std::memory_order_relaxed);
  }
  void CountCompleted() { completed.fetch_add(1, std::memory_order_release); }

  void KeepError(anvilError_t error, const std::string& words) {
    std::lock_guard lock(error_mutex_);
    error_.Keep(error, words);
  }
  anvil::PendingError TakeError() {
    std::lock_guard lock(error_mutex_);
    return std::exchange(error_, {});
  }

  std::shared_ptr<anvil::Capture> capture;  // guarded by the captures' lock (capture.cpp)

 private:
  std::mutex error_mutex_;
  anvil::PendingError error_;
};

namespace anvil {

// The streams of one device.
class StreamList {
 public:
  explicit StreamList(Device* device);

  anvilStream_t default_stream() const { return default_stream_; }
  anvilStream_t Create(int priority);
  // Queued commands still run, and the stream lives until they have.
  void Destroy(anvilStream_t stream);
  // Takes out a stream that was destroyed and has nothing to run any more.
  void Remove(anvilStream_t stream);
  // Waits for all streams and reports the first error of any.
  anvilError_t Synchronize();
  // Waits for all streams, captured or not, and takes no error. Does nothing inside a command.
  void WaitIdle();

  // Those that have not been destroyed, or have something to run still.
  std::vector<std::shared_ptr<anvilStream_st>> All();
  std::shared_ptr<anvilStream_st> Find(uint64_t id);  // of these; null: none

 private:
  Device* const device_;
  std::mutex mutex_;  // never held while a command is waited for: it may create a stream
  // By id, the default stream first. Shared with whoever waits for one while it is destroyed.
  std::vector<std::shared_ptr<anvilStream_st>> streams_;
  uint64_t next_id_ = 0;
  anvilStream_t default_stream_;
  PendingError orphaned_;  // of streams that were destroyed before anyone waited
};

// Whether something that was submitted has not run yet. False inside a command of the stream.
inline bool IsBusy(anvilStream_t stream) { return stream != running_stream && stream->busy(); }

// Makes the command the stream's next one, or a capture's: anvilStreamSubmit after its checks.
// `graph`: the one that the command replays, if any.
anvilError_t Submit(anvilStream_t stream, const anvilCommand& command,
                    anvilGraph_t graph = nullptr);

// Queues a command of the runtime's own behind what the stream has to run, also inside a command
// and while the stream is captured. Needs no handle that is valid: the stream may be destroyed
// meanwhile.
anvilError_t Enqueue(anvilStream_t stream, const anvilCommand& command);

// Passes, or waits for, a point in the stream, which is not being captured. A wait inside a command
// fails unless the point has been passed.
anvilError_t SubmitRecord(anvilStream_t stream, std::shared_ptr<Completion> completion);
anvilError_t SubmitWait(anvilStream_t stream, std::shared_ptr<Completion> completion);

// Queues the end of a stream, which keeps it alive until then.
void SubmitClose(std::shared_ptr<anvilStream_st> stream);

// Waits until everything submitted so far has run; not inside a command.
anvilError_t Wait(anvilStream_t stream);

// The pool of the capture that the stream takes part in; null: none. Lives until the capture ends.
GraphPool* CapturingPool(anvilStream_t stream);

// "Stream 3 of device 0", for messages.
std::string Describe(anvilStream_t stream);

}  // namespace anvil
