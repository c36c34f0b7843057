// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstdint>

#include "device.h"
#include "error.h"
#include "process.h"
#include "stream.h"

namespace {
constexpr int64_t kNeverRecorded = INT64_MIN;
}

struct anvilEvent_st {
  explicit anvilEvent_st(unsigned flags) : flags(flags) {}

  const unsigned flags;
  std::atomic<int64_t> nanoseconds{kNeverRecorded};  // steady clock
};

using namespace anvil;

namespace {

anvilError_t Stamp(void* arg) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  static_cast<anvilEvent_t>(arg)->nanoseconds.store(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), std::memory_order_release);
  return ANVIL_SUCCESS;
}

// What every call on an event checks first.
anvilError_t CheckEvent(const char* function, anvilEvent_t event) {
  if (IsForkedChild()) return FailForked();
  if (event == nullptr) return FailNull(function, "event");
  return ANVIL_SUCCESS;
}

}  // namespace

anvilError_t anvilEventCreate(anvilEvent_t* event, unsigned flags) {
  return Guarded([&] {
    if (event == nullptr) return FailNull("anvilEventCreate", "event");
    *event = nullptr;
    const std::vector<Device*>* devices = nullptr;
    const anvilError_t status = GetDevices(&devices);
    if (status != ANVIL_SUCCESS) return status;
    if ((flags & ~ANVIL_EVENT_TIMING) != 0) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilEventCreate: unknown flags.");
    }
    *event = new anvilEvent_st(flags);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilEventDestroy(anvilEvent_t event) {
  return Guarded([&] {
    const anvilError_t status = CheckEvent("anvilEventDestroy", event);
    if (status == ANVIL_SUCCESS) delete event;
    return status;
  });
}

anvilError_t anvilEventRecord(anvilEvent_t event, anvilStream_t stream) {
  return Guarded([&] {
    const anvilError_t status = CheckEvent("anvilEventRecord", event);
    if (status != ANVIL_SUCCESS) return status;
    if (stream == nullptr) return FailNull("anvilEventRecord", "stream");
    return RunInOrder(stream, {"event record", Stamp, nullptr, event});
  });
}

// A recorded event is complete: the record ran before anvilEventRecord returned.
anvilError_t anvilEventQuery(anvilEvent_t event) {
  return Guarded([&] { return CheckEvent("anvilEventQuery", event); });
}

anvilError_t anvilEventSynchronize(anvilEvent_t event) {
  return Guarded([&] { return CheckEvent("anvilEventSynchronize", event); });
}

anvilError_t anvilStreamWaitEvent(anvilStream_t stream, anvilEvent_t event) {
  return Guarded([&] {
    const anvilError_t status = CheckEvent("anvilStreamWaitEvent", event);
    if (status != ANVIL_SUCCESS) return status;
    return stream == nullptr ? FailNull("anvilStreamWaitEvent", "stream") : ANVIL_SUCCESS;
  });
}

anvilError_t anvilEventElapsedTime(float* milliseconds, anvilEvent_t start, anvilEvent_t end) {
  return Guarded([&] {
    if (milliseconds == nullptr) return FailNull("anvilEventElapsedTime", "milliseconds");
    for (anvilEvent_t event : {start, end}) {
      const anvilError_t status = CheckEvent("anvilEventElapsedTime", event);
      if (status != ANVIL_SUCCESS) return status;
      if ((event->flags & ANVIL_EVENT_TIMING) == 0) {
        return Fail(ANVIL_ERROR_INVALID_VALUE,
                    "Elapsed time needs two events that were created with timing "
                    "(ANVIL_EVENT_TIMING, enable_timing=True).");
      }
      if (event->nanoseconds.load(std::memory_order_acquire) == kNeverRecorded) {
        return Fail(ANVIL_ERROR_INVALID_VALUE,
                    "Elapsed time needs two events that have been recorded.");
      }
    }
    const int64_t elapsed = end->nanoseconds.load(std::memory_order_acquire) -
                            start->nanoseconds.load(std::memory_order_acquire);
    *milliseconds = static_cast<float>(static_cast<double>(elapsed) / 1e6);
    return ANVIL_SUCCESS;
  });
}
