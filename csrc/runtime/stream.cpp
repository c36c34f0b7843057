// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <algorithm>

#include "device.h"
#include "error.h"
#include "process.h"

namespace anvil {
namespace {

// The stream whose command the calling thread is running. Work submitted from inside a command is
// part of it: it runs at once, and no second stream is waited for, which could be waiting for us.
thread_local anvilStream_t running_stream = nullptr;

// Runs the command and gives a failure its words: the command's own where it left any.
anvilError_t Run(const anvilCommand& command) {
  const unsigned long failures = FailureCount();
  std::string words;
  anvilError_t status = ANVIL_SUCCESS;
  try {
    status = command.run(command.arg);
    if (status == ANVIL_SUCCESS) return status;
    if (FailureCount() != failures) words = anvilGetLastErrorMessage();
  } catch (const std::exception& error) {
    status = ANVIL_ERROR_COMMAND;
    words = error.what();
  } catch (...) {
    status = ANVIL_ERROR_COMMAND;
    words = "it threw an exception that is no std::exception";
  }
  return Fail(status, "Command '" + std::string(command.name ? command.name : "unnamed") +
                          "' failed: " + (words.empty() ? anvilErrorName(status) : words));
}

// Releases what a command keeps alive, however the command ends.
class Release {
 public:
  explicit Release(const anvilCommand& command) : command_(command) {}
  ~Release() {
    if (command_.destroy != nullptr) command_.destroy(command_.arg);
  }
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;

 private:
  const anvilCommand& command_;
};

}  // namespace

void PendingError::Keep(anvilError_t error, const std::string& words) {
  if (error == ANVIL_SUCCESS || code != ANVIL_SUCCESS) return;
  code = error;
  message = words;
}

anvilError_t PendingError::Take() {
  if (code == ANVIL_SUCCESS) return ANVIL_SUCCESS;
  const anvilError_t taken = code;
  code = ANVIL_SUCCESS;
  return Fail(taken, message);
}

anvilError_t RunInOrder(anvilStream_t stream, const anvilCommand& command) {
  // Destroyed after the lock is gone: what it releases may well use the stream again.
  const Release release(command);
  if (running_stream != nullptr) return Run(command);
  std::lock_guard lock(stream->mutex);
  running_stream = stream;
  stream->running.store(true, std::memory_order_relaxed);
  const anvilError_t status = Run(command);
  stream->running.store(false, std::memory_order_release);
  running_stream = nullptr;
  if (status != ANVIL_SUCCESS) stream->error.Keep(status, anvilGetLastErrorMessage());
  return status;
}

StreamList::StreamList(Device* device) : device_(device), default_stream_(Create(0)) {}

anvilStream_t StreamList::Create(int priority) {
  std::lock_guard lock(mutex_);
  streams_.push_back(std::make_shared<anvilStream_st>(device_, next_id_, priority));
  ++next_id_;
  return streams_.back().get();
}

void StreamList::Destroy(anvilStream_t stream) {
  std::shared_ptr<anvilStream_st> removed;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(streams_.begin(), streams_.end(),
                                    [stream](const auto& entry) { return entry.get() == stream; });
    if (found == streams_.end()) return;
    removed = *found;
    streams_.erase(found);
  }
  PendingError left;
  {
    std::lock_guard running(removed->mutex);  // a command of another thread finishes first
    left = removed->error;
  }
  std::lock_guard lock(mutex_);
  orphaned_.Keep(left.code, left.message);
}

anvilError_t StreamList::Synchronize() {
  PendingError first;
  std::vector<std::shared_ptr<anvilStream_st>> streams;
  {
    std::lock_guard lock(mutex_);
    std::swap(first, orphaned_);
    streams = streams_;
  }
  for (const auto& stream : streams) {
    // A command that waits for its own device has everything before it behind it.
    if (stream.get() == running_stream) continue;
    std::lock_guard running(stream->mutex);
    first.Keep(stream->error.code, stream->error.message);
    stream->error = {};
  }
  return first.Take();
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilStreamCreate(anvilStream_t* stream, int device, int priority) {
  return Guarded([&] {
    if (stream == nullptr) return FailNull("anvilStreamCreate", "stream");
    *stream = nullptr;
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status == ANVIL_SUCCESS) *stream = found->streams.Create(priority);
    return status;
  });
}

anvilError_t anvilStreamDestroy(anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamDestroy", "stream");
    if (stream->id == 0) {
      return Fail(ANVIL_ERROR_INVALID_VALUE,
                  "anvilStreamDestroy: the default stream lives as long as its device.");
    }
    if (stream == running_stream) {
      return Fail(ANVIL_ERROR_INVALID_VALUE,
                  "anvilStreamDestroy: a command cannot destroy the stream it runs on.");
    }
    stream->device->streams.Destroy(stream);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilStreamGetDefault(anvilStream_t* stream, int device) {
  return Guarded([&] {
    if (stream == nullptr) return FailNull("anvilStreamGetDefault", "stream");
    *stream = nullptr;
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status == ANVIL_SUCCESS) *stream = found->streams.default_stream();
    return status;
  });
}

int anvilStreamDevice(anvilStream_t stream) { return stream ? stream->device->index : -1; }
int anvilStreamPriority(anvilStream_t stream) { return stream ? stream->priority : 0; }
uint64_t anvilStreamId(anvilStream_t stream) { return stream ? stream->id : 0; }

anvilError_t anvilStreamSubmit(anvilStream_t stream, const anvilCommand* command) {
  return Guarded([&] {
    if (command == nullptr) return FailNull("anvilStreamSubmit", "command");
    const auto refuse = [command](anvilError_t status) {
      const Release release(*command);
      return status;
    };
    if (IsForkedChild()) return refuse(FailForked());
    if (stream == nullptr) return refuse(FailNull("anvilStreamSubmit", "stream"));
    if (command->run == nullptr) return refuse(FailNull("anvilStreamSubmit", "command->run"));
    return RunInOrder(stream, *command);
  });
}

anvilError_t anvilStreamQuery(anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamQuery", "stream");
    if (stream == running_stream) return ANVIL_SUCCESS;  // all before this command is done
    const bool running = stream->running.load(std::memory_order_acquire);
    return running ? ANVIL_ERROR_NOT_READY : ANVIL_SUCCESS;
  });
}

anvilError_t anvilStreamSynchronize(anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilStreamSynchronize", "stream");
    if (stream == running_stream) return ANVIL_SUCCESS;
    std::lock_guard running(stream->mutex);
    return stream->error.Take();
  });
}
