// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "sanitizer.h"
#include "stream.h"

namespace anvil {

void PendingError::Keep(anvilError_t error, const std::string& words) {
  if (error == ANVIL_SUCCESS || code != ANVIL_SUCCESS) return;
  code = error;
  message = words;
}

anvilError_t PendingError::Take() {
  if (code == ANVIL_SUCCESS) return ANVIL_SUCCESS;
  return Fail(std::exchange(code, ANVIL_SUCCESS), message);
}

StreamList::StreamList(Device* device) : device_(device), default_stream_(Create(0)) {}

anvilStream_t StreamList::Create(int priority) {
  std::lock_guard lock(mutex_);
  streams_.push_back(std::make_shared<anvilStream_st>(device_, next_id_, priority));
  ++next_id_;
  return streams_.back().get();
}

void StreamList::Destroy(anvilStream_t stream) {
  if (!stream->busy()) return Remove(stream);
  if (!device_->configuration.launch_blocking) return SubmitClose(stream->shared_from_this());
  {
    std::lock_guard order(stream->order);  // a command of another thread finishes first
  }
  Remove(stream);
}

void StreamList::Remove(anvilStream_t stream) {
  std::shared_ptr<anvilStream_st> removed;  // goes without the lock
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [stream](const auto& entry) { return entry.get() == stream; });
  if (found == streams_.end()) return;
  removed = std::move(*found);
  streams_.erase(found);
  const PendingError left = removed->TakeError();
  orphaned_.Keep(left.code, left.message);
}

std::vector<std::shared_ptr<anvilStream_st>> StreamList::All() {
  std::lock_guard lock(mutex_);
  return streams_;
}

std::shared_ptr<anvilStream_st> StreamList::Find(uint64_t id) {
  std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) {
    if (stream->id == id) return stream;
  }
  return nullptr;
}

anvilError_t StreamList::Synchronize() {
  // What a command may rely on is behind it already; the rest cannot be waited for.
  if (InsideCommand()) return ANVIL_SUCCESS;
  const auto streams = All();
  for (const auto& stream : streams) {
    const anvilError_t status = CheckNotCapturing(stream.get());
    if (status != ANVIL_SUCCESS) return status;
  }
  PendingError first;
  for (const auto& stream : streams) {
    sanitizer::HostWaitsFor(stream.get());
    const anvilError_t status = Wait(stream.get());
    if (status != ANVIL_SUCCESS) return status;
    const PendingError error = stream->TakeError();
    first.Keep(error.code, error.message);
  }
  {
    std::lock_guard lock(mutex_);
    const PendingError orphaned = std::exchange(orphaned_, {});
    first.Keep(orphaned.code, orphaned.message);
  }
  return first.Take();
}

void StreamList::WaitIdle() {
  if (InsideCommand()) return;
  for (const auto& stream : All()) Wait(stream.get());
}

}  // namespace anvil
