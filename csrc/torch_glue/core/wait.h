// SPDX-License-Identifier: Apache-2.0
// Waiting for the device. Every blocking wait goes through here, so that none holds Python's global
// lock while it waits.
#pragma once

#include <c10/core/Stream.h>

#include "core/device.h"

namespace anvil {

// What to do around a wait: `enter` gives up what other threads may need and returns a token,
// `leave` takes it back. Installed once by the Python module.
struct WaitHooks {
  void* (*enter)() = nullptr;
  void (*leave)(void* token) = nullptr;
};
void set_wait_hooks(WaitHooks hooks);

// Wait, then raise the first error of a command since the last report.
void synchronize(anvilStream_t stream);
void synchronize_device(c10::DeviceIndex device);
void synchronize_event(anvilEvent_t event);

// Fails the capture, and raises, where the stream is being captured: there are no values then.
// `purpose` completes "... needs values on the host".
void refuse_while_capturing(anvilStream_t stream, const char* purpose);

// Before the host uses memory that commands of the calling thread's current stream may still use.
void wait_for_host_use(c10::DeviceIndex device, const char* purpose);

}  // namespace anvil
