// SPDX-License-Identifier: Apache-2.0
// The threads of a device: detached, deaf to signals, bound to the device's cores.
#pragma once

#include <vector>

namespace anvil {

// Starts a detached thread with all signals blocked: they are the application's, and its handlers
// should not run here. Returns 0 or the system's error number.
int StartThread(void* (*body)(void*), void* arg);

// Names the calling thread and binds it to the cores: to all of them rather than to one, since the
// threads that use the device are not bound, and a thread tied to the core that one of those
// happens to be on could not get away.
void SettleThread(const char* name, const std::vector<int>& cores);

}  // namespace anvil
