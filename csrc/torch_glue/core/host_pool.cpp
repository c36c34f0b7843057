// SPDX-License-Identifier: Apache-2.0
#include "core/host_pool.h"

#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace anvil {
namespace {

thread_local HostPoolScope::State current_state;

// Blocks behind pooled memory by address: some users of torch's CPU allocator (oneDNN's scratch)
// free by address alone.
class PooledBlocks {
 public:
  struct Entry {
    anvilBlock_t block = nullptr;
    anvilStream_t stream = nullptr;
  };

  void add(void* address, Entry entry) {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    shard.entries.emplace(address, entry);
  }
  Entry take(void* address) {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.entries.find(address);
    if (found == shard.entries.end()) return {};
    const Entry entry = found->second;
    shard.entries.erase(found);
    return entry;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Entry> entries;
  };
  Shard& shard_of(void* address) {
    return shards_[(reinterpret_cast<uintptr_t>(address) >> 6) % shards_.size()];
  }
  std::array<Shard, 16> shards_;
};

PooledBlocks& pooled_blocks() {
  static auto* blocks = new PooledBlocks;  // leaked: memory is freed during static destruction too
  return *blocks;
}

void note_allocation(MemoryTrace* trace, void* address, size_t bytes) {
  if (trace == nullptr) return;
  trace->steps.push_back({static_cast<int32_t>(trace->bytes.size()), /*frees=*/false});
  trace->bytes.push_back(bytes);
  trace->addresses.push_back(address);
}

void note_free(MemoryTrace* trace, void* address) {
  if (trace == nullptr) return;
  // The latest at that address: earlier ones there have ended.
  for (auto i = static_cast<int32_t>(trace->addresses.size()) - 1; i >= 0; --i) {
    if (trace->addresses[static_cast<size_t>(i)] != address) continue;
    trace->steps.push_back({i, /*frees=*/true});
    trace->addresses[static_cast<size_t>(i)] = nullptr;
    return;
  }
}

// The place of the next allocation; null when there is none.
void* take_place(PlannedMemory& plan, size_t bytes) {
  if (plan.trace == nullptr) {
    for (size_t i = 0; i < plan.count && i < 64; ++i) {
      if (plan.bytes[i] != bytes || ((plan.used >> i) & 1) != 0) continue;
      plan.used |= uint64_t{1} << i;
      return plan.places[i];
    }
    return nullptr;
  }
  const auto& steps = plan.trace->steps;
  plan.on_plan = plan.on_plan && plan.next_step < steps.size() && !steps[plan.next_step].frees;
  if (!plan.on_plan) return nullptr;
  const auto allocation = static_cast<size_t>(steps[plan.next_step].allocation);
  plan.on_plan = plan.trace->bytes[allocation] == bytes;
  if (!plan.on_plan) return nullptr;
  ++plan.next_step;
  return plan.places[allocation];
}

void leave_place(PlannedMemory& plan, const void* address) {
  if (plan.trace == nullptr || !plan.on_plan) return;
  const auto& steps = plan.trace->steps;
  plan.on_plan = plan.next_step < steps.size() && steps[plan.next_step].frees &&
                 plan.places[steps[plan.next_step].allocation] == address;
  if (plan.on_plan) ++plan.next_step;
}

void free_pooled(void* address) {
  if (address == nullptr) return;
  note_free(current_state.trace, address);
  const PooledBlocks::Entry entry = pooled_blocks().take(address);
  if (entry.block != nullptr) {
    // A planned free of memory that had no place of its own is a step all the same.
    if (current_state.plan != nullptr) leave_place(*current_state.plan, nullptr);
    anvilFree(entry.block);
  } else if (current_state.plan != nullptr) {
    leave_place(*current_state.plan, address);
  }
}

class HostPool final : public c10::Allocator {
 public:
  explicit HostPool(c10::Allocator* system) : system_(system) {}

  at::DataPtr allocate(size_t bytes) override {
    const HostPoolScope::State& state = current_state;
    if (state.device < 0) return system_->allocate(bytes);
    if (bytes == 0) return {nullptr, nullptr, &free_pooled, c10::Device(c10::kCPU)};
    void* address = state.plan != nullptr ? take_place(*state.plan, bytes) : nullptr;
    if (address == nullptr) {
      anvilBlock_t block = nullptr;
      check(state.stream != nullptr
                ? anvilMallocAsync(&block, &address, bytes, state.stream, ANVIL_ALLOC_DEFAULT)
                : anvilMalloc(&block, &address, bytes, state.device, ANVIL_ALLOC_DEFAULT));
      pooled_blocks().add(address, {block, state.stream});
      // The stream was empty: what it holds now is the allocation's own (ANVIL_DEBUG_POISON).
      if (state.stream != nullptr && anvilStreamIsBusy(state.stream) != 0) {
        check(anvilStreamSynchronize(state.stream));
      }
    }
    note_allocation(state.trace, address, bytes);
    return {address, address, &free_pooled, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  c10::Allocator* system() const { return system_; }

 private:
  static void free_any(void* address);

  c10::Allocator* system_;
};

HostPool*& instance() {
  static HostPool* pool = nullptr;  // leaked: storages may outlive every other static
  return pool;
}

void HostPool::free_any(void* address) {
  int device = 0;
  if (address == nullptr || anvilPointerGetDevice(&device, address) == ANVIL_SUCCESS) {
    free_pooled(address);
  } else {
    instance()->system()->raw_deallocate(address);
  }
}

}  // namespace

void install_host_pool() {
  if (instance() != nullptr) return;
  instance() = new HostPool(c10::GetCPUAllocator());
  constexpr uint8_t kAboveDefault = 1;
  c10::SetCPUAllocator(instance(), kAboveDefault);
}

c10::Allocator* host_pool() { return instance(); }

HostPoolScope::HostPoolScope(anvilStream_t stream, MemoryTrace* trace)
    : previous_(std::exchange(
          current_state,
          {static_cast<c10::DeviceIndex>(anvilStreamDevice(stream)), stream, nullptr, trace})) {}

HostPoolScope::HostPoolScope(c10::DeviceIndex device, PlannedMemory* plan, MemoryTrace* trace)
    : previous_(std::exchange(current_state, {device, nullptr, plan, trace})) {}

HostPoolScope::~HostPoolScope() { current_state = previous_; }

anvilBlock_t HostPoolScope::take_block(at::DataPtr& data, anvilStream_t* stream) {
  if (data.get_deleter() != &free_pooled) return nullptr;
  const PooledBlocks::Entry entry = pooled_blocks().take(data.get());
  if (entry.block == nullptr) return nullptr;
  data.release_context();
  *stream = entry.stream;
  return entry.block;
}

}  // namespace anvil
