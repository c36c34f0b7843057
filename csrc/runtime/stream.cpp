// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <utility>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "sanitizer.h"

namespace anvil {
namespace {

std::atomic<uint64_t> last_ticket{0};

uint64_t NextTicket() { return last_ticket.fetch_add(1, std::memory_order_relaxed) + 1; }

bool RunsOnSubmitter(anvilStream_t stream) { return stream->device->configuration.launch_blocking; }

// Queues what `fill(entry)` makes of an entry.
template <typename FillEntry>
anvilError_t Push(anvilStream_t stream, Entry::Kind kind, uint64_t ticket, FillEntry&& fill) {
  Entry* const entry = TakeEntry();
  entry->stream = stream;
  entry->ticket = ticket;
  entry->kind = kind;
  fill(*entry);
  stream->submitted.fetch_add(1, std::memory_order_relaxed);
  const anvilError_t status = stream->device->executor.Push(entry);
  if (status != ANVIL_SUCCESS) {
    stream->submitted.fetch_sub(1, std::memory_order_relaxed);
    delete entry;
  }
  return status;
}

// The command is destroyed if it is refused.
anvilError_t PushCommand(anvilStream_t stream, Entry::Kind kind, const anvilCommand& command,
                         uint64_t ticket) {
  CommandOwner owner(command);
  const anvilError_t status = Push(stream, kind, ticket, [&](Entry& entry) {
    entry.name = command.name;
    entry.run = command.run;
    entry.destroy = command.destroy;
    entry.arg = command.arg;
    if (kind == Entry::Kind::kInternalCommand) entry.keeps = stream->shared_from_this();
  });
  if (status == ANVIL_SUCCESS) owner.HandOver();
  return status;
}

// Counts what runs on its submitter as submitted, then as completed.
class CountOnSubmitter {
 public:
  explicit CountOnSubmitter(anvilStream_t stream) : stream_(stream) {
    stream_->submitted.fetch_add(1, std::memory_order_relaxed);
  }
  ~CountOnSubmitter() {
    stream_->CountCompleted();
    stream_->completed.notify_all();
  }
  CountOnSubmitter(const CountOnSubmitter&) = delete;
  CountOnSubmitter& operator=(const CountOnSubmitter&) = delete;

 private:
  const anvilStream_t stream_;
};

anvilError_t RunOnSubmitter(anvilStream_t stream, const anvilCommand& command, uint64_t ticket) {
  const CountOnSubmitter count(stream);
  const RunningCommand running(stream);
  const CommandOwner owner(command);  // released after the lock: that may use the stream again
  std::lock_guard lock(stream->order);
  sanitizer::Starting(ticket);
  const anvilError_t status = Run(command.name, command.run, command.arg);
  sanitizer::Finished(ticket);
  if (status != ANVIL_SUCCESS) stream->KeepError(status, anvilGetLastErrorMessage());
  return status;
}

}  // namespace

std::string Describe(anvilStream_t stream) {
  return "Stream " + std::to_string(stream->id) + " of device " +
         std::to_string(stream->device->index);
}

anvilError_t Submit(anvilStream_t stream, const anvilCommand& command, anvilGraph_t graph) {
  if (InsideCommand()) {
    const CommandOwner owner(command);
    return Run(command.name, command.run, command.arg);
  }
  anvilError_t status = ANVIL_SUCCESS;
  if (CaptureCommand(stream, command, graph, &status)) return status;
  const uint64_t ticket = NextTicket();
  sanitizer::Submitted(stream, command, ticket);
  if (RunsOnSubmitter(stream)) return RunOnSubmitter(stream, command, ticket);
  status = PushCommand(stream, Entry::Kind::kCommand, command, ticket);
  if (status != ANVIL_SUCCESS) sanitizer::Finished(ticket);
  return status;
}

anvilError_t Enqueue(anvilStream_t stream, const anvilCommand& command) {
  const uint64_t ticket = NextTicket();
  if (!RunsOnSubmitter(stream)) {
    return PushCommand(stream, Entry::Kind::kInternalCommand, command, ticket);
  }
  if (!InsideCommand()) return RunOnSubmitter(stream, command, ticket);
  const CommandOwner owner(command);
  return Run(command.name, command.run, command.arg);
}

anvilError_t SubmitRecord(anvilStream_t stream, std::shared_ptr<Completion> completion) {
  if (!InsideCommand() && !RunsOnSubmitter(stream)) {
    return Push(stream, Entry::Kind::kRecord, NextTicket(),
                [&](Entry& entry) { entry.completion = std::move(completion); });
  }
  std::unique_lock lock(stream->order, std::defer_lock);
  if (!InsideCommand()) lock.lock();
  completion->Finish([] {});
  return ANVIL_SUCCESS;
}

anvilError_t SubmitWait(anvilStream_t stream, std::shared_ptr<Completion> completion) {
  if (completion->done()) return ANVIL_SUCCESS;
  if (InsideCommand()) {
    return Fail(ANVIL_ERROR_NOT_READY,
                "The event has not been reached and cannot be waited for inside a command.");
  }
  if (!RunsOnSubmitter(stream)) {
    return Push(stream, Entry::Kind::kWait, NextTicket(),
                [&](Entry& entry) { entry.completion = std::move(completion); });
  }
  completion->Wait();
  return ANVIL_SUCCESS;
}

void SubmitClose(std::shared_ptr<anvilStream_st> stream) {
  Push(stream.get(), Entry::Kind::kClose, NextTicket(),
       [&](Entry& entry) { entry.keeps = stream; });
}

anvilError_t Wait(anvilStream_t stream) {
  if (!IsBusy(stream)) return ANVIL_SUCCESS;
  const uint64_t target = stream->submitted.load(std::memory_order_relaxed);
  const auto count = [stream] { return stream->completed.load(std::memory_order_acquire); };
  if (RunsOnSubmitter(stream)) {
    for (uint64_t now = count(); now < target; now = count()) {
      stream->completed.wait(now, std::memory_order_acquire);
    }
    return ANVIL_SUCCESS;
  }
  if (SpinUntil(Completion::kSpinTime, [&] { return count() >= target; })) return ANVIL_SUCCESS;
  const auto end = std::make_shared<Completion>(stream->device);
  const anvilError_t status = SubmitRecord(stream, end);
  if (status == ANVIL_SUCCESS) end->Wait();
  return status;
}

}  // namespace anvil
