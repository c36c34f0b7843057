// SPDX-License-Identifier: Apache-2.0
// Streams: commands run in order, here on the submitting thread before the submission returns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anvil/runtime.h"

namespace anvil {

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

struct anvilStream_st {
  anvilStream_st(anvil::Device* device, uint64_t id, int priority)
      : device(device), id(id), priority(priority) {}

  anvil::Device* const device;
  const uint64_t id;
  const int priority;
  std::mutex mutex;  // held while a command runs: submitters from several threads keep an order
  std::atomic<bool> running{false};  // a command; told apart from others who hold the mutex
  anvil::PendingError error;         // guarded by mutex
};

namespace anvil {

// The streams of one device.
class StreamList {
 public:
  explicit StreamList(Device* device);

  anvilStream_t default_stream() const { return default_stream_; }
  anvilStream_t Create(int priority);
  void Destroy(anvilStream_t stream);
  // Waits for all streams and reports the first error of any.
  anvilError_t Synchronize();

 private:
  Device* const device_;
  std::mutex mutex_;  // never held while a command is waited for: it may create a stream
  // By id, the default stream first. Shared with whoever waits for one while it is destroyed.
  std::vector<std::shared_ptr<anvilStream_st>> streams_;
  uint64_t next_id_ = 0;
  anvilStream_t default_stream_;
  PendingError orphaned_;  // of streams that were destroyed before anyone waited
};

// Runs `body` as the next command of the stream.
anvilError_t RunInOrder(anvilStream_t stream, const anvilCommand& command);

}  // namespace anvil
