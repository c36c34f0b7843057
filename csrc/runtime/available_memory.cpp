// SPDX-License-Identifier: Apache-2.0
#include "available_memory.h"

#include <atomic>
#include <chrono>
#include <mutex>

#include "planner.h"
#include "topology.h"

namespace anvil {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kValidity{10};

std::atomic<bool> forgotten{true};

}  // namespace

uint64_t AvailableHostMemory() {
  struct Reading {
    std::mutex mutex;
    // The groups that the process is in and where their files are: what is looked up does not
    // change, unlike what the files say.
    const CgroupDirectories directories = FindCgroups("");
    Clock::time_point time;
    uint64_t available = 0;
  };
  static Reading& reading = *new Reading;
  std::lock_guard lock(reading.mutex);
  if (!forgotten.exchange(false) && Clock::now() - reading.time < kValidity) {
    return reading.available;
  }
  reading.available = AvailableMemory(ReadHostMemory("", reading.directories));
  reading.time = Clock::now();
  return reading.available;
}

void ForgetAvailableHostMemory() noexcept { forgotten.store(true); }

}  // namespace anvil
