// SPDX-License-Identifier: Apache-2.0
#include "core/host_pool.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "core/error.h"

namespace anvil {
namespace {

void free_block(void* context) { anvilFree(static_cast<anvilBlock_t>(context)); }

// Some users of torch's CPU allocator (oneDNN's scratch) free by address alone, so a pooled
// allocation must be recognisable from its address: the block handle stands in front of the data.
struct Header {
  anvilBlock_t block;
};
constexpr size_t kHeaderBytes = 64;  // keeps the data's alignment
static_assert(sizeof(Header) <= kHeaderBytes);

void free_pooled(void* data) {
  if (data == nullptr) return;
  anvilFree(reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes)->block);
}

class HostPool final : public c10::Allocator {
 public:
  explicit HostPool(c10::Allocator* system) : system_(system) {}

  at::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = HostPoolScope::current();
    if (device < 0) return system_->allocate(bytes);
    if (bytes == 0) return {nullptr, nullptr, &free_pooled, c10::Device(c10::kCPU)};
    anvilBlock_t block = nullptr;
    void* base = nullptr;
    check(anvilMalloc(&block, &base, bytes + kHeaderBytes, device, ANVIL_ALLOC_DEFAULT));
    static_cast<Header*>(base)->block = block;
    void* data = static_cast<char*>(base) + kHeaderBytes;
    return {data, data, &free_pooled, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  c10::Allocator* system() const { return system_; }

 private:
  static void free_any(void* data);

  c10::Allocator* system_;
};

HostPool*& instance() {
  static HostPool* pool = nullptr;  // leaked: storages may outlive every other static
  return pool;
}

void HostPool::free_any(void* data) {
  int device = 0;
  if (anvilPointerGetDevice(&device, data) == ANVIL_SUCCESS) {
    free_pooled(data);
  } else {
    instance()->system()->raw_deallocate(data);
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

at::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device, bool zeroed) {
  anvilBlock_t block = nullptr;
  void* data = nullptr;
  check(
      anvilMalloc(&block, &data, bytes, device, zeroed ? ANVIL_ALLOC_ZEROED : ANVIL_ALLOC_DEFAULT));
  return {data, block, &free_block, c10::Device(c10::kCPU)};
}

}  // namespace anvil
