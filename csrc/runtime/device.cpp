// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <cstring>

#include "process.h"
#include "sanitizer.h"
#include "stream_order.h"
#include "topology.h"

namespace anvil {
namespace {

struct Registry {
  anvilError_t status = ANVIL_SUCCESS;
  std::string message;
  Configuration configuration;
  std::vector<Device*> devices;
};

thread_local int current_device = 0;
std::atomic<bool> initialized{false};

std::string DeviceName(const Host& host, const DevicePlan& plan) {
  const size_t count = plan.cores.size();
  return "Anvil host device (" + host.cpu_model + ", " + std::to_string(count) +
         (count == 1 ? " core)" : " cores)");
}

Registry* MakeRegistry() {
  Registry* registry = new Registry;
  const auto fail = [registry](anvilError_t status, std::string message) {
    registry->status = status;
    registry->message = std::move(message);
    IgnoreForks();
    return registry;
  };
  // Before anything else: a fork from another thread meanwhile must be marked.
  const anvilError_t watching = WatchForks();
  if (watching != ANVIL_SUCCESS) return fail(watching, anvilGetLastErrorMessage());
  const auto configuration = ReadConfiguration(ProcessEnvironment);
  if (!configuration.ok()) return fail(ANVIL_ERROR_CONFIGURATION, configuration.error);
  const Host host = ReadHost("", ReadAffinity());
  const auto plans = PlanDevices(host, configuration.value.request);
  if (!plans.ok()) return fail(ANVIL_ERROR_CONFIGURATION, plans.error);
  registry->configuration = configuration.value;
  if (registry->configuration.sanitize) sanitizer::Enable();
  debug_poison.store(registry->configuration.poison, std::memory_order_relaxed);
  for (const DevicePlan& plan : plans.value) {
    const int index = static_cast<int>(registry->devices.size());
    const int node = host.nodes.size() > 1 ? plan.numa_node : -1;
    registry->devices.push_back(
        new Device(index, plan, node, DeviceName(host, plan), registry->configuration));
  }
  initialized.store(true, std::memory_order_release);
  IgnoreForks();
  return registry;
}

}  // namespace

Device::Device(int index, const DevicePlan& plan, int preferred_node, std::string name,
               const Configuration& configuration)
    : index(index),
      plan(plan),
      name(std::move(name)),
      configuration(configuration),
      allocator(index, preferred_node, plan.memory),
      workers(index, plan.cores),
      executor(this, plan.cores, configuration.longest_delay),
      streams(this) {}

anvilError_t FindDevices(const std::vector<Device*>** devices) {
  if (IsForkedChild()) return FailForked();
  static Registry& registry = *MakeRegistry();
  if (registry.status != ANVIL_SUCCESS) return Fail(registry.status, registry.message);
  *devices = &registry.devices;
  return ANVIL_SUCCESS;
}

anvilError_t FindDevice(int index, Device** device) {
  const std::vector<Device*>* devices = nullptr;
  const anvilError_t status = FindDevices(&devices);
  if (status != ANVIL_SUCCESS) return status;
  if (index < 0 || static_cast<size_t>(index) >= devices->size()) {
    const size_t count = devices->size();
    return Fail(ANVIL_ERROR_INVALID_DEVICE,
                "There is no device " + std::to_string(index) + ": " +
                    (count == 1 ? "the only visible one is 0"
                                : "the visible ones are 0 to " + std::to_string(count - 1)) +
                    ". Set ANVIL_DEVICES to cut the host into more (and check "
                    "ANVIL_VISIBLE_DEVICES).");
  }
  *device = (*devices)[static_cast<size_t>(index)];
  return ANVIL_SUCCESS;
}

anvilError_t GetDevices(const std::vector<Device*>** devices) {
  const anvilError_t status = FindDevices(devices);
  if (status == ANVIL_SUCCESS) MarkInUse();
  return status;
}

anvilError_t GetDevice(int index, Device** device) {
  const anvilError_t status = FindDevice(index, device);
  if (status == ANVIL_SUCCESS) MarkInUse();
  return status;
}

anvilError_t FailNull(const char* function, const char* argument) {
  return Fail(ANVIL_ERROR_INVALID_VALUE,
              std::string(function) + ": " + argument + " must not be null.");
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilGetDeviceCount(int* count) {
  return Guarded([&] {
    if (count == nullptr) return FailNull("anvilGetDeviceCount", "count");
    *count = 0;
    const std::vector<Device*>* devices = nullptr;
    const anvilError_t status = FindDevices(&devices);
    if (status == ANVIL_SUCCESS) *count = static_cast<int>(devices->size());
    return status;
  });
}

anvilError_t anvilGetDevice(int* device) {
  return Guarded([&] {
    if (device == nullptr) return FailNull("anvilGetDevice", "device");
    if (IsForkedChild()) return FailForked();
    *device = current_device;
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilSetDevice(int device) {
  return Guarded([&] {
    Device* found = nullptr;
    const anvilError_t status = FindDevice(device, &found);
    if (status == ANVIL_SUCCESS) current_device = device;
    return status;
  });
}

anvilError_t anvilGetDeviceProperties(anvilDeviceProperties* properties, int device) {
  return Guarded([&] {
    if (properties == nullptr) return FailNull("anvilGetDeviceProperties", "properties");
    Device* found = nullptr;
    const anvilError_t status = FindDevice(device, &found);
    if (status != ANVIL_SUCCESS) return status;
    *properties = {};
    std::strncpy(properties->name, found->name.c_str(), sizeof(properties->name) - 1);
    properties->physical_index = found->plan.physical_index;
    properties->numa_node = found->plan.numa_node;
    properties->core_count = static_cast<int>(found->plan.cores.size());
    properties->cores = found->plan.cores.data();
    properties->total_memory = found->plan.memory;
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilDeviceSynchronize(int device) {
  return Guarded([&] {
    Device* found = nullptr;
    const anvilError_t status = GetDevice(device, &found);
    return status == ANVIL_SUCCESS ? found->streams.Synchronize() : status;
  });
}

int anvilIsInitialized(void) { return initialized.load(std::memory_order_acquire) ? 1 : 0; }

int anvilIsLaunchBlocking(void) {
  Device* device = nullptr;
  const anvilError_t status = Guarded([&] { return FindDevice(0, &device); });
  return status == ANVIL_SUCCESS && device->configuration.launch_blocking ? 1 : 0;
}
