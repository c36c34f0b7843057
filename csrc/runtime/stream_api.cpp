// SPDX-License-Identifier: Apache-2.0
// The entry points for streams.
#include "capture.h"
#include "device.h"
#include "error.h"
#include "process.h"
#include "sanitizer.h"
#include "stream.h"

using namespace anvil;

namespace {

// What every call on a stream checks first.
anvilError_t CheckStream(const char* function, anvilStream_t stream) {
  if (IsForkedChild()) return FailForked();
  if (stream == nullptr) return FailNull(function, "stream");
  return ANVIL_SUCCESS;
}

}  // namespace

anvilError_t anvilStreamCreate(anvilStream_t* stream, int device, int priority) {
  return Guarded([&] {
    if (stream == nullptr) return FailNull("anvilStreamCreate", "stream");
    *stream = nullptr;
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status == ANVIL_SUCCESS) *stream = found->streams.Create(priority);
    return status;
  });
}

anvilError_t anvilStreamDestroy(anvilStream_t stream) {
  return Guarded([&] {
    anvilError_t status = CheckStream("anvilStreamDestroy", stream);
    if (status != ANVIL_SUCCESS) return status;
    if (stream->id == 0) {
      return Fail(ANVIL_ERROR_INVALID_VALUE,
                  "anvilStreamDestroy: the default stream lives as long as its device.");
    }
    if (stream == running_stream) {
      return Fail(ANVIL_ERROR_INVALID_VALUE,
                  "anvilStreamDestroy: a command cannot destroy the stream it runs on.");
    }
    status = CheckNotCapturing(stream);
    if (status == ANVIL_SUCCESS) stream->device->streams.Destroy(stream);
    return status;
  });
}

anvilError_t anvilStreamGetDefault(anvilStream_t* stream, int device) {
  return Guarded([&] {
    if (stream == nullptr) return FailNull("anvilStreamGetDefault", "stream");
    *stream = nullptr;
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    if (status == ANVIL_SUCCESS) *stream = found->streams.default_stream();
    return status;
  });
}

int anvilStreamDevice(anvilStream_t stream) { return stream ? stream->device->index : -1; }
int anvilStreamPriority(anvilStream_t stream) { return stream ? stream->priority : 0; }
uint64_t anvilStreamId(anvilStream_t stream) { return stream ? stream->id : 0; }

anvilError_t anvilStreamSubmit(anvilStream_t stream, const anvilCommand* command) {
  return Guarded([&] {
    if (command == nullptr) return FailNull("anvilStreamSubmit", "command");
    anvilError_t status = CheckStream("anvilStreamSubmit", stream);
    if (status == ANVIL_SUCCESS && command->run == nullptr) {
      status = FailNull("anvilStreamSubmit", "command->run");
    }
    if (status == ANVIL_SUCCESS) return Submit(stream, *command);
    const CommandOwner refused(*command);
    return status;
  });
}

int anvilStreamWantsAccesses(anvilStream_t stream) {
  if (stream == nullptr || IsForkedChild()) return 0;
  return sanitizer::Enabled() || stream->capturing.load(std::memory_order_acquire) ? 1 : 0;
}

int anvilStreamIsBusy(anvilStream_t stream) {
  return stream != nullptr && !IsForkedChild() && IsBusy(stream) ? 1 : 0;
}

anvilError_t anvilStreamQuery(anvilStream_t stream) {
  return Guarded([&] {
    anvilError_t status = CheckStream("anvilStreamQuery", stream);
    if (status == ANVIL_SUCCESS) status = CheckNotCapturing(stream);
    if (status != ANVIL_SUCCESS) return status;
    if (stream == running_stream) return ANVIL_SUCCESS;  // all before this command is done
    if (stream->busy()) return ANVIL_ERROR_NOT_READY;
    sanitizer::HostWaitsFor(stream);
    return stream->TakeError().Take();
  });
}

anvilError_t anvilStreamSynchronize(anvilStream_t stream) {
  return Guarded([&] {
    anvilError_t status = CheckStream("anvilStreamSynchronize", stream);
    if (status != ANVIL_SUCCESS || stream == running_stream) return status;
    if (InsideCommand() && stream->busy()) {
      return Fail(ANVIL_ERROR_NOT_READY, Describe(stream) +
                                             " has work to do and cannot be waited for inside a "
                                             "command, which may be what it waits for.");
    }
    status = CheckNotCapturing(stream);
    if (status != ANVIL_SUCCESS) return status;
    sanitizer::HostWaitsFor(stream);
    status = Wait(stream);
    return status == ANVIL_SUCCESS ? stream->TakeError().Take() : status;
  });
}
