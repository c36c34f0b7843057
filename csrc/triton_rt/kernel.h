// SPDX-License-Identifier: Apache-2.0
// A compiled kernel, and running a grid of its programs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernel_abi.h"

namespace anvil::triton {

// What all launches of one compiled kernel share. Queued commands hold it, so that the code stays
// for as long as it may run.
struct Kernel {
  std::string name;
  KernelEntry entry = nullptr;
  size_t scratch_bytes = 0;               // per program
  std::shared_ptr<const void> code = {};  // keeps the memory behind `entry`
  // A running mean over its launches; 0 before the first.
  std::atomic<float> nanoseconds_per_program{0};
};

struct Grid {
  int32_t x = 1, y = 1, z = 1;

  int64_t programs() const { return int64_t{x} * y * z; }
};

// Programs of a grid at most.
constexpr int64_t kMaxPrograms = INT64_C(1) << 31;

// The threads that may share a grid: `run`, which is given `context`, calls task(argument) `count`
// times, once on each thread where it can, and returns when all calls have returned.
struct Team {
  int count = 1;
  void (*run)(void* context, int count, void (*task)(void*), void* argument) = nullptr;
  void* context = nullptr;
};

// Runs all programs of the grid. Short launches stay on the calling thread; longer ones are shared
// with the team, each thread taking more as it is done, since programs may differ much in length.
// Returns "", or why the launch failed: then programs that had not begun were left out.
std::string run_grid(Kernel& kernel, const void* arguments, const Grid& grid, const Team& team);

}  // namespace anvil::triton
