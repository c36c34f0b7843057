// SPDX-License-Identifier: Apache-2.0
#include "core/wait.h"

#include "core/stream.h"

namespace anvil {
namespace {

WaitHooks installed_hooks;

class Waiting {
 public:
  Waiting() : token_(installed_hooks.enter != nullptr ? installed_hooks.enter() : nullptr) {}
  ~Waiting() {
    if (token_ != nullptr) installed_hooks.leave(token_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void* const token_;
};

template <typename Wait>
void wait_and_check(Wait&& wait) {
  anvilError_t status = ANVIL_SUCCESS;
  {
    const Waiting waiting;
    status = wait();
  }
  check(status);
}

}  // namespace

void set_wait_hooks(WaitHooks hooks) { installed_hooks = hooks; }

void synchronize(anvilStream_t stream) {
  wait_and_check([stream] { return anvilStreamSynchronize(stream); });
}

void synchronize_device(c10::DeviceIndex device) {
  wait_and_check([device] { return anvilDeviceSynchronize(device); });
}

void synchronize_event(anvilEvent_t event) {
  wait_and_check([event] { return anvilEventSynchronize(event); });
}

void refuse_while_capturing(anvilStream_t stream, const char* purpose) {
  if (C10_UNLIKELY(anvilStreamIsCapturing(stream) != 0)) {
    const std::string reason =
        std::string(purpose) +
        " needs values on the host, which do not exist while a graph is captured. Move it out of "
        "the captured region, or keep its inputs and results on the device.";
    check(anvilStreamFailCapture(stream, reason.c_str()));
  }
}

void wait_for_host_use(c10::DeviceIndex device, const char* purpose) {
  anvilStream_t stream = current_stream_handle(device);
  refuse_while_capturing(stream, purpose);
  synchronize(stream);
}

}  // namespace anvil
