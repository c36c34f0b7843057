// SPDX-License-Identifier: Apache-2.0
// Streams of the runtime under the ids that c10::Stream carries.
#pragma once

#include <c10/core/Stream.h>

#include <mutex>

#include "core/device.h"

namespace anvil {

// The runtime's stream behind a c10::Stream of this backend.
anvilStream_t stream_handle(const c10::Stream& stream);

c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
// stream_handle(current_stream(device)), without a look-up: every launch asks for it.
anvilStream_t current_stream_handle(c10::DeviceIndex device);
// Makes `stream` current for its device on this thread; returns the one it replaces.
c10::Stream exchange_stream(const c10::Stream& stream);
// One of a fixed set per device and priority, handed out in turn, as torch.cuda does: streams are
// never destroyed.
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int stream_priority(const c10::Stream& stream);

// Keeps other threads from submitting to the stream. What is allocated and freed in a stream's
// order, and then submitted, has to be one step for them; so has a kernel that the caller runs
// itself on memory of the stream. May be nested.
class LaunchSection {
 public:
  explicit LaunchSection(anvilStream_t stream);

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace anvil
