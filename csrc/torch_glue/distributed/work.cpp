// SPDX-License-Identifier: Apache-2.0
#include "distributed/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <thread>

#include "core/stream.h"
#include "core/wait.h"

namespace anvil {

void Outcome::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
}

std::exception_ptr Outcome::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

CollectiveWork::CollectiveWork(int rank, c10d::OpType type, anvilStream_t stream,
                               c10::DeviceIndex device, bool blocks_host)
    : Work(rank, type), stream_(stream), device_(device), blocks_host_(blocks_host) {}

CollectiveWork::~CollectiveWork() {
  if (event_ != nullptr) anvilEventDestroy(event_);
}

void CollectiveWork::queued(std::vector<at::Tensor> outputs) {
  anvilEvent_t event = nullptr;
  check(anvilEventCreate(&event, ANVIL_EVENT_DEFAULT));
  event_ = event;
  check(anvilEventRecord(event_, stream_));
  outputs_ = std::move(outputs);
}

bool CollectiveWork::isCompleted() {
  if (event_ == nullptr) return false;
  const anvilError_t status = anvilEventQuery(event_);
  if (status == ANVIL_ERROR_NOT_READY) return false;
  check(status);
  return true;
}

bool CollectiveWork::isSuccess() const { return outcome_->error() == nullptr; }

std::exception_ptr CollectiveWork::exception() const { return outcome_->error(); }

void CollectiveWork::synchronize() {
  // Part of a batch that is not queued yet: the batch's own work is what waits.
  if (event_ == nullptr) return;
  anvilStream_t current = current_stream_handle(device_);
  if (current != stream_) check(anvilStreamWaitEvent(current, event_));
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  const bool to_be_waited_for = blocks_host_ || timeout != kNoTimeout;
  if (event_ != nullptr && to_be_waited_for && anvilStreamIsCapturing(stream_) == 0) {
    wait_on_host(timeout);
  }
  if (const std::exception_ptr error = outcome_->error()) std::rethrow_exception(error);
  return true;
}

void CollectiveWork::wait_on_host(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) return synchronize_event(event_);
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < end, c10d::opTypeToString(opType_), " on rank ",
                rank_, " is not done after ", timeout.count(), " ms.");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  const c10::Device device(kAnvil, device_);
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
  // It is complete once the current stream is where the collective is done.
  synchronize();
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

}  // namespace anvil
