// SPDX-License-Identifier: Apache-2.0
#include "memory_source.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "available_memory.h"

namespace anvil {
namespace {

struct Mapping {
  size_t bytes;  // with memory behind them
  int device;
};

struct MappingTable {
  std::shared_mutex mutex;
  std::map<uintptr_t, Mapping> by_base;
};

// Never destroyed: memory is freed during static destruction, too.
MappingTable& Table() {
  static MappingTable& table = *new MappingTable;
  return table;
}

// Asks for pages of one node without insisting. By system call: the only use of libnuma would be
// this. Failure (no NUMA, a sandbox that forbids it) leaves the kernel's own choice.
void PreferNode(void* base, size_t bytes, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 1024 / kBits> mask{};
  if (node < 0 || static_cast<size_t>(node) >= mask.size() * kBits) return;
  mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  // The kernel reads one bit less than it is told.
  syscall(SYS_mbind, base, bytes, kPreferred, mask.data(), mask.size() * kBits + 1, 0);
}

// A mapping aligned to the granule, of which the first `backed` bytes count as the device's.
std::byte* Map(size_t bytes, int protection, size_t backed, int numa_node, int device) {
  // mmap aligns to a page only: map a granule more and cut both ends off.
  const size_t padded = bytes + kSegmentGranule;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0);
  void* mapped = padded < bytes ? MAP_FAILED : mmap(nullptr, padded, protection, flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t base = RoundUp(begin, kSegmentGranule);
  if (base > begin) munmap(mapped, base - begin);
  const size_t tail = begin + padded - (base + bytes);
  if (tail > 0) munmap(reinterpret_cast<void*>(base + bytes), tail);

  void* pointer = reinterpret_cast<void*>(base);
  madvise(pointer, bytes, MADV_HUGEPAGE);
  PreferNode(pointer, bytes, numa_node);
  MappingTable& table = Table();
  std::unique_lock lock(table.mutex);
  table.by_base.emplace(base, Mapping{backed, device});
  return static_cast<std::byte*>(pointer);
}

}  // namespace

std::byte* MapMemory(size_t bytes, int numa_node, int device) {
  return Map(bytes, PROT_READ | PROT_WRITE, bytes, numa_node, device);
}

std::byte* ReserveAddresses(size_t bytes, int numa_node, int device) {
  return Map(bytes, PROT_NONE, 0, numa_node, device);
}

bool BackAddresses(std::byte* base, size_t backed, size_t more) {
  if (mprotect(base + backed, more, PROT_READ | PROT_WRITE) != 0) return false;
  MappingTable& table = Table();
  std::unique_lock lock(table.mutex);
  table.by_base.at(reinterpret_cast<uintptr_t>(base)).bytes = backed + more;
  return true;
}

bool DropMemory(std::byte* base, size_t bytes) {
  if (mprotect(base, bytes, PROT_NONE) != 0) return false;
  const bool dropped = madvise(base, bytes, MADV_DONTNEED) == 0;
  ForgetAvailableHostMemory();
  return dropped;
}

bool RestoreMemory(std::byte* base, size_t bytes) {
  return mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0;
}

void UnmapMemory(std::byte* base, size_t bytes) {
  {
    MappingTable& table = Table();
    std::unique_lock lock(table.mutex);
    table.by_base.erase(reinterpret_cast<uintptr_t>(base));
  }
  munmap(base, bytes);
  ForgetAvailableHostMemory();
}

int OwnerOf(const void* address) {
  MappingTable& table = Table();
  std::shared_lock lock(table.mutex);
  const uintptr_t target = reinterpret_cast<uintptr_t>(address);
  auto next = table.by_base.upper_bound(target);
  if (next == table.by_base.begin()) return -1;
  const auto& [base, mapping] = *std::prev(next);
  return target - base < mapping.bytes ? mapping.device : -1;
}

}  // namespace anvil
