// SPDX-License-Identifier: Apache-2.0
// Work as commands of a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <utility>

#include "core/device.h"

namespace anvil {

// What a command touches, for stream-ordered memory and, where they are on, the sanitizer and graph
// captures.
class Accesses {
 public:
  explicit Accesses(anvilStream_t stream)
      : stream_(stream), wanted_(anvilStreamWantsAccesses(stream) != 0) {}

  void read(const at::Tensor& tensor) { add(tensor, ANVIL_ACCESS_READ); }
  void write(const at::Tensor& tensor) { add(tensor, ANVIL_ACCESS_WRITE); }
  void add(const at::Tensor& tensor, unsigned flags);

  // For what the calling thread itself does with the memory, after it has waited for the stream:
  // lets the sanitizer see it, as a command in its place.
  void note_host_use(const char* name) const;

  anvilStream_t stream() const { return stream_; }
  const anvilAccess* data() const { return list_.data(); }
  size_t size() const { return list_.size(); }

 private:
  anvilStream_t const stream_;
  const bool wanted_;
  c10::SmallVector<anvilAccess, 6> list_;
};

// What a command takes over from the thread that submits it.
class CallerState {
 public:
  CallerState();
  // Makes the calling thread like the submitting one, for commands that follow each other on it.
  void adopt() const;

 private:
  bool grad_mode_;
  bool inference_mode_;
  int num_threads_;
};

// Runs `body`, turning exceptions into the runtime's errors and words.
anvilError_t run_guarded(void (*body)(void*), void* arg) noexcept;

namespace detail {

template <typename Body>
struct Closure {
  Body body;
  CallerState caller;

  static anvilError_t run(void* arg) {
    return run_guarded(
        [](void* inner) {
          auto* self = static_cast<Closure*>(inner);
          self->caller.adopt();
          self->body();
        },
        arg);
  }
  static void destroy(void* arg) { delete static_cast<Closure*>(arg); }
};

// Hands the command over; raises what a submission can raise.
void submit(anvilStream_t stream, const anvilCommand& command);

}  // namespace detail

// Queues body() as a command of the stream. It may be called several times, from a graph, and must
// not throw away what it needs for that. `name` lives as long as the process.
template <typename Body>
void submit(const char* name, const Accesses& accesses, Body&& body) {
  using Closure = detail::Closure<std::decay_t<Body>>;
  auto closure = std::make_unique<Closure>(Closure{std::forward<Body>(body), CallerState()});
  const anvilCommand command = {
      name, &Closure::run, &Closure::destroy, closure.release(), accesses.data(), accesses.size()};
  detail::submit(accesses.stream(), command);
}

}  // namespace anvil
