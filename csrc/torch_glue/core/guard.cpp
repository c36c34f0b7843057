// SPDX-License-Identifier: Apache-2.0
// What torch's device guards, torch.Stream and torch.Event call.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "core/device.h"
#include "core/storage.h"
#include "core/stream.h"
#include "core/wait.h"

namespace anvil {
namespace {

anvilEvent_t as_event(void* event) { return static_cast<anvilEvent_t>(event); }

struct AnvilGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kAnvil; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() >= 0 && device.index() != previous.index()) set_device(device.index());
    return previous;
  }

  c10::Device getDevice() const override { return {kAnvil, current_device()}; }

  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) anvilSetDevice(device.index());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return device_count_or_zero(); }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(resolve_device(device).index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(resolve_device(device).index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(resolve_device(device).index(), high_priority ? -1 : 0);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(resolve_device(device).index(), priority);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream_handle(stream);
  }

  bool queryStream(const c10::Stream& stream) const override {
    return is_complete(anvilStreamQuery(stream_handle(stream)));
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream_handle(stream));
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
  }

  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    if (event != nullptr) anvilEventDestroy(as_event(event));
  }

  // torch creates events lazily: the first record makes them. BACKEND_DEFAULT is how it asks for
  // timing.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) {
      anvilEvent_t created = nullptr;
      check(anvilEventCreate(&created, flag == c10::EventFlag::BACKEND_DEFAULT
                                           ? ANVIL_EVENT_TIMING
                                           : ANVIL_EVENT_DEFAULT));
      *event = created;
    }
    check(anvilEventRecord(as_event(*event), stream_handle(stream)));
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) check(anvilStreamWaitEvent(stream_handle(stream), as_event(event)));
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || is_complete(anvilEventQuery(as_event(event)));
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) synchronize_event(as_event(event));
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before their elapsed time can be asked for.");
    float milliseconds = 0;
    check(anvilEventElapsedTime(&milliseconds, as_event(start), as_event(end)));
    return milliseconds;
  }

  bool isStreamCapturing(const c10::Stream& stream) const override {
    return anvilStreamIsCapturing(stream_handle(stream)) != 0;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_on_stream(data, stream_handle(stream));
  }

 private:
  static bool is_complete(anvilError_t status) {
    if (status == ANVIL_ERROR_NOT_READY) return false;
    check(status);
    return true;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, AnvilGuardImpl);

}  // namespace
}  // namespace anvil
