// SPDX-License-Identifier: Apache-2.0
// Commands made of closures, and gates that hold them up.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "anvil/runtime.h"

// Closed at first; once opened it stays open.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

using Work = std::function<anvilError_t()>;

// Submits the closure, which lives until the command is destroyed.
inline anvilError_t Submit(anvilStream_t stream, Work body, const char* name = "work") {
  const anvilCommand command{name,
                             [](void* arg) { return (*static_cast<Work*>(arg))(); },
                             [](void* arg) { delete static_cast<Work*>(arg); },
                             new Work(std::move(body)),
                             nullptr,
                             0};
  return anvilStreamSubmit(stream, &command);
}

// Submits something that cannot fail.
inline anvilError_t Do(anvilStream_t stream, std::function<void()> body) {
  return Submit(stream, [body = std::move(body)] {
    body();
    return ANVIL_SUCCESS;
  });
}

// Holds the stream up until the gate is opened.
inline anvilError_t WaitAt(anvilStream_t stream, const std::shared_ptr<Gate>& gate) {
  return Do(stream, [gate] { gate->Pass(); });
}
