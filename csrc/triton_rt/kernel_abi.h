// SPDX-License-Identifier: Apache-2.0
// What a compiled kernel and its caller agree on. The compiler emits code against this layout
// (vllm_anvil/triton_backend/lower), so a change here is one there.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace anvil::triton {

// Of one worker during one launch.
struct TritonLaunch {
  int32_t grid[3];
  int32_t reserved;
  void* scratch;  // of this worker, aligned to 64 bytes; null where the kernel wants none
  void* context;  // first argument of the callbacks
  // A whole piece of formatted text; from any thread.
  void (*print)(void* context, const char* text, size_t length);
  // The message of a failed device_assert, with its place in the source; from any thread.
  void (*fail)(void* context, const char* message);
  // libc's, so that objects need no symbol for it.
  int (*snprintf)(char*, size_t, const char*, ...);
};
static_assert(sizeof(TritonLaunch) == 56 && offsetof(TritonLaunch, scratch) == 16);

// Runs one program of the grid. `arguments` are slots of 8 bytes, each value at the start of its
// own, in its own width. Returns 0, or 1 after it called `fail`.
using KernelEntry = int32_t (*)(const void* arguments, const TritonLaunch* launch, int32_t x,
                                int32_t y, int32_t z);

}  // namespace anvil::triton
