// SPDX-License-Identifier: Apache-2.0
#include "core/stream.h"

#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace anvil {
namespace {

constexpr size_t kStreamsPerPriority = 32;

struct DeviceStreams {
  std::unordered_map<c10::StreamId, anvilStream_t> by_id;
  struct Ring {
    std::vector<c10::StreamId> ids;
    size_t next = 0;
  };
  std::unordered_map<int, Ring> pool;  // by priority
};

struct Registry {
  std::mutex mutex;
  std::array<DeviceStreams, ANVIL_MAX_DEVICES> devices;
};

Registry& registry() {
  static auto* streams = new Registry;  // leaked: streams are usable until the process ends
  return *streams;
}

thread_local std::array<c10::StreamId, ANVIL_MAX_DEVICES> current_ids{};

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kAnvil, device), id);
}

}  // namespace

anvilStream_t stream_handle(const c10::Stream& stream) {
  const c10::DeviceIndex device = stream.device_index();
  if (stream.id() == 0) {
    anvilStream_t handle = nullptr;
    check(anvilStreamGetDefault(&handle, device));
    return handle;
  }
  Registry& streams = registry();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  const auto& by_id = streams.devices.at(device).by_id;
  const auto found = by_id.find(stream.id());
  TORCH_CHECK(found != by_id.end(), "anvil:", static_cast<int>(device), " has no stream ",
              stream.id());
  return found->second;
}

c10::Stream default_stream(c10::DeviceIndex device) { return make_stream(device, 0); }

c10::Stream current_stream(c10::DeviceIndex device) {
  return make_stream(device, current_ids.at(device));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  c10::StreamId& current = current_ids.at(stream.device_index());
  const c10::Stream previous = make_stream(stream.device_index(), current);
  current = stream.id();
  return previous;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, int priority) {
  Registry& streams = registry();
  const std::lock_guard<std::mutex> lock(streams.mutex);
  DeviceStreams& owner = streams.devices.at(device);
  DeviceStreams::Ring& ring = owner.pool[priority];
  if (ring.ids.size() < kStreamsPerPriority) {
    anvilStream_t handle = nullptr;
    check(anvilStreamCreate(&handle, device, priority));
    const auto id = static_cast<c10::StreamId>(anvilStreamId(handle));
    owner.by_id.emplace(id, handle);
    ring.ids.push_back(id);
    return make_stream(device, id);
  }
  return make_stream(device, ring.ids[ring.next++ % kStreamsPerPriority]);
}

int stream_priority(const c10::Stream& stream) {
  return anvilStreamPriority(stream_handle(stream));
}

}  // namespace anvil
