// SPDX-License-Identifier: Apache-2.0
// Filling memory outside any stream, split over a device's workers when it is large.
#pragma once

#include <cstddef>

#include "worker_pool.h"

namespace anvil {

void Fill(WorkerPool& workers, void* dst, int value, size_t bytes);

// The same as a command that says nothing of what it touches.
anvilCommand FillCommand(const char* name, WorkerPool& workers, void* dst, int value, size_t bytes);

}  // namespace anvil
