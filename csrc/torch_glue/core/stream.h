// SPDX-License-Identifier: Apache-2.0
// Streams of the runtime under the ids that c10::Stream carries.
#pragma once

#include <c10/core/Stream.h>

#include "core/device.h"

namespace anvil {

// The runtime's stream behind a c10::Stream of this backend.
anvilStream_t stream_handle(const c10::Stream& stream);

c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
// Makes `stream` current for its device on this thread; returns the one it replaces.
c10::Stream exchange_stream(const c10::Stream& stream);
// One of a fixed set per device and priority, handed out in turn, as torch.cuda does: streams are
// never destroyed.
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int stream_priority(const c10::Stream& stream);

}  // namespace anvil
