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

struct Current {
  c10::StreamId id = 0;
  anvilStream_t handle = nullptr;  // null: not looked up yet
};
thread_local std::array<Current, ANVIL_MAX_DEVICES> current_streams{};

// By stream; a few streams that share one only wait for each other without need.
std::recursive_mutex& launch_mutex(anvilStream_t stream) {
  static auto* mutexes = new std::array<std::recursive_mutex, 64>;
  const uint64_t device = static_cast<uint64_t>(anvilStreamDevice(stream));
  return (*mutexes)[(anvilStreamId(stream) + device * 7) % mutexes->size()];
}

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
  return make_stream(device, current_streams.at(device).id);
}

anvilStream_t current_stream_handle(c10::DeviceIndex device) {
  Current& current = current_streams.at(device);
  if (C10_UNLIKELY(current.handle == nullptr))
    current.handle = stream_handle(current_stream(device));
  return current.handle;
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  Current& current = current_streams.at(stream.device_index());
  const c10::Stream previous = make_stream(stream.device_index(), current.id);
  if (current.id != stream.id()) current = {stream.id(), nullptr};
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

LaunchSection::LaunchSection(anvilStream_t stream) : lock_(launch_mutex(stream)) {}

}  // namespace anvil
