// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <string>

#include "capture.h"
#include "completion.h"
#include "device.h"
#include "error.h"
#include "process.h"
#include "sanitizer.h"
#include "stream.h"

struct anvilEvent_st {
  explicit anvilEvent_st(unsigned flags) : flags(flags) {}

  // The last record: a point in a stream, or a capture, or neither. Every record makes a new one,
  // so that who waits for an earlier one is not disturbed.
  struct Record {
    std::shared_ptr<anvil::Completion> completion;
    std::shared_ptr<anvil::Capture> capture;
  };

  Record record() {
    std::lock_guard lock(mutex_);
    return record_;
  }
  void set_record(Record record) {
    std::lock_guard lock(mutex_);
    std::swap(record_, record);
  }

  const unsigned flags;

 private:
  std::mutex mutex_;
  Record record_;
};

using namespace anvil;

namespace {

// What every call on an event checks first.
anvilError_t CheckEvent(const char* function, anvilEvent_t event) {
  if (IsForkedChild()) return FailForked();
  if (event == nullptr) return FailNull(function, "event");
  return ANVIL_SUCCESS;
}

// The host cannot ask for a point that only replays pass.
anvilError_t CheckNotCaptured(const anvilEvent_st::Record& record) {
  if (record.capture == nullptr) return ANVIL_SUCCESS;
  return FailCapture(record.capture,
                     "The event was recorded in a capture, where nothing runs: it cannot be "
                     "queried, waited for or timed. Record it again outside the capture.");
}

// Checks the event for a call of the host and gets its last record.
anvilError_t GetRecord(const char* function, anvilEvent_t event, anvilEvent_st::Record* record) {
  const anvilError_t status = CheckEvent(function, event);
  if (status != ANVIL_SUCCESS) return status;
  *record = event->record();
  return CheckNotCaptured(*record);
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
    anvilError_t status = CheckEvent("anvilEventRecord", event);
    if (status != ANVIL_SUCCESS) return status;
    if (stream == nullptr) return FailNull("anvilEventRecord", "stream");
    if (!InsideCommand()) {
      if (auto capture = CaptureOf(stream)) {
        event->set_record({nullptr, std::move(capture)});
        return ANVIL_SUCCESS;
      }
    }
    const auto completion = std::make_shared<Completion>(stream->device);
    completion->clock = sanitizer::Recorded(stream);
    status = SubmitRecord(stream, completion);
    if (status == ANVIL_SUCCESS) event->set_record({completion, nullptr});
    return status;
  });
}

anvilError_t anvilEventQuery(anvilEvent_t event) {
  return Guarded([&] {
    anvilEvent_st::Record record;
    const anvilError_t status = GetRecord("anvilEventQuery", event, &record);
    if (status != ANVIL_SUCCESS || record.completion == nullptr) return status;
    if (!record.completion->done()) return ANVIL_ERROR_NOT_READY;
    sanitizer::HostWaits(record.completion->clock);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilEventSynchronize(anvilEvent_t event) {
  return Guarded([&] {
    anvilEvent_st::Record record;
    const anvilError_t status = GetRecord("anvilEventSynchronize", event, &record);
    if (status != ANVIL_SUCCESS || record.completion == nullptr) return status;
    if (InsideCommand() && !record.completion->done()) {
      return Fail(ANVIL_ERROR_NOT_READY,
                  "The event has not been reached and cannot be waited for inside a command, which "
                  "may be what it waits for.");
    }
    record.completion->Wait();
    sanitizer::HostWaits(record.completion->clock);
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilStreamWaitEvent(anvilStream_t stream, anvilEvent_t event) {
  return Guarded([&] {
    const anvilError_t status = CheckEvent("anvilStreamWaitEvent", event);
    if (status != ANVIL_SUCCESS) return status;
    if (stream == nullptr) return FailNull("anvilStreamWaitEvent", "stream");
    const anvilEvent_st::Record record = event->record();
    if (record.capture != nullptr || stream->capturing.load(std::memory_order_acquire)) {
      return WaitInCapture(stream, record.capture, record.completion.get());
    }
    if (record.completion == nullptr) return ANVIL_SUCCESS;
    sanitizer::StreamWaits(stream, record.completion->clock);
    return SubmitWait(stream, record.completion);
  });
}

anvilError_t anvilEventElapsedTime(float* milliseconds, anvilEvent_t start, anvilEvent_t end) {
  return Guarded([&] {
    if (milliseconds == nullptr) return FailNull("anvilEventElapsedTime", "milliseconds");
    int64_t times[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
      const anvilEvent_t event = i == 0 ? start : end;
      anvilEvent_st::Record record;
      const anvilError_t status = GetRecord("anvilEventElapsedTime", event, &record);
      if (status != ANVIL_SUCCESS) return status;
      if ((event->flags & ANVIL_EVENT_TIMING) == 0) {
        return Fail(ANVIL_ERROR_INVALID_VALUE,
                    "Elapsed time needs two events that were created with timing "
                    "(ANVIL_EVENT_TIMING, enable_timing=True).");
      }
      if (record.completion == nullptr) {
        return Fail(ANVIL_ERROR_INVALID_VALUE,
                    "Elapsed time needs two events that have been recorded.");
      }
      if (!record.completion->done()) {
        return Fail(ANVIL_ERROR_NOT_READY,
                    "Elapsed time needs two events that have been reached: "
                    "synchronize the later one first.");
      }
      times[i] = record.completion->nanoseconds();
    }
    *milliseconds = static_cast<float>(static_cast<double>(times[1] - times[0]) / 1e6);
    return ANVIL_SUCCESS;
  });
}
