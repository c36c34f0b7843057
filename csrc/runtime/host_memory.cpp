// SPDX-License-Identifier: Apache-2.0
// Pinned host memory. Device and host share one memory here, so that no transfer engine needs pages
// to stay put: "pinned" means memory that this file knows, not memory that is locked (mlock would
// count against RLIMIT_MEMLOCK, a few MiB by default, and gain nothing).
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "allocator.h"
#include "device.h"
#include "memory_source.h"
#include "process.h"
#include "sanitizer.h"
#include "units.h"

namespace anvil {
namespace {

class PinnedMemory {
 public:
  // Null when the host refuses.
  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    Mapping mapping = TakeCached(bytes);
    if (mapping.base == nullptr) mapping = Map(MappingSize(bytes));
    if (mapping.base == nullptr) {
      UnmapCached();
      mapping = Map(MappingSize(bytes));
      if (mapping.base == nullptr) return nullptr;
    }
    in_use_.emplace(reinterpret_cast<uintptr_t>(mapping.base), mapping.size);
    Increase(stats_.allocation, 1);
    Increase(stats_.allocated_bytes, mapping.size);
    return mapping.base;
  }

  // Of the allocation that starts there; 0 when none does.
  size_t SizeOf(void* base) {
    std::lock_guard lock(mutex_);
    const auto found = in_use_.find(reinterpret_cast<uintptr_t>(base));
    return found == in_use_.end() ? 0 : found->second;
  }

  bool Free(void* base) {
    std::lock_guard lock(mutex_);
    const auto found = in_use_.find(reinterpret_cast<uintptr_t>(base));
    if (found == in_use_.end()) return false;
    Decrease(stats_.allocation, 1);
    Decrease(stats_.allocated_bytes, found->second);
    cached_.emplace(found->second, base);
    in_use_.erase(found);
    return true;
  }

  void EmptyCache() {
    std::lock_guard lock(mutex_);
    UnmapCached();
  }

  bool Contains(const void* address) {
    std::lock_guard lock(mutex_);
    const uintptr_t target = reinterpret_cast<uintptr_t>(address);
    const auto next = in_use_.upper_bound(target);
    if (next == in_use_.begin()) return false;
    const auto& [base, size] = *std::prev(next);
    return target - base < size;
  }

  template <typename Body>
  void WithStats(Body&& body) {
    std::lock_guard lock(mutex_);
    body(stats_);
  }

 private:
  struct Mapping {
    void* base = nullptr;
    size_t size = 0;
  };

  // Pages; up to a sixteenth more for large ones, so that sizes that differ a little share
  // mappings.
  static size_t MappingSize(size_t bytes) {
    size_t granule = kPageSize;
    while (granule < bytes / 32) granule *= 2;
    return RoundUp(bytes, granule);
  }

  // The smallest that is large enough, if no more than a quarter of it goes to waste.
  Mapping TakeCached(size_t bytes) {
    const auto found = cached_.lower_bound(MappingSize(bytes));
    if (found == cached_.end() || found->first - MappingSize(bytes) > found->first / 4) return {};
    const Mapping mapping{found->second, found->first};
    cached_.erase(found);
    return mapping;
  }

  Mapping Map(size_t size) {
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return {};
    if (size >= kSegmentGranule) madvise(base, size, MADV_HUGEPAGE);
    Increase(stats_.reserved_bytes, size);
    return {base, size};
  }

  void UnmapCached() {
    for (const auto& [size, base] : cached_) {
      munmap(base, size);
      Decrease(stats_.reserved_bytes, size);
    }
    cached_.clear();
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> in_use_;   // mappings handed out: base and size
  std::multimap<size_t, void*> cached_;  // the others, by size
  anvilHostStats stats_{};
};

// Never destroyed: memory is freed during static destruction, too.
PinnedMemory& Memory() {
  static PinnedMemory& memory = *new PinnedMemory;
  return memory;
}

// Pinned memory belongs to the devices: it does not exist without them, nor in a forked child.
anvilError_t CheckDevices() {
  const std::vector<Device*>* devices = nullptr;
  return GetDevices(&devices);
}

}  // namespace
}  // namespace anvil

using namespace anvil;

anvilError_t anvilHostAlloc(void** ptr, size_t bytes) {
  return Guarded([&] {
    if (ptr == nullptr) return FailNull("anvilHostAlloc", "ptr");
    *ptr = nullptr;
    const anvilError_t status = CheckDevices();
    if (status != ANVIL_SUCCESS || bytes == 0) return status;
    *ptr = bytes <= SIZE_MAX / 4 ? Memory().Allocate(bytes) : nullptr;
    if (*ptr != nullptr) return ANVIL_SUCCESS;
    return Fail(ANVIL_ERROR_OUT_OF_MEMORY,
                "The host refused " + FormatBytes(bytes) + " of pinned memory (" +
                    std::strerror(ENOMEM) +
                    "). Free memory on the host, or raise the process's limits (ulimit -v, "
                    "cgroup, vm.overcommit_memory).");
  });
}

anvilError_t anvilHostFree(void* ptr) {
  return Guarded([&] {
    if (ptr == nullptr) return ANVIL_SUCCESS;
    if (IsForkedChild()) return FailForked();
    if (sanitizer::Enabled()) {
      const size_t size = Memory().SizeOf(ptr);
      if (size > 0) sanitizer::Freed(nullptr, ptr, size, nullptr);
    }
    if (Memory().Free(ptr)) return ANVIL_SUCCESS;
    return Fail(ANVIL_ERROR_INVALID_VALUE,
                "anvilHostFree: the address is not the start of a pinned allocation.");
  });
}

anvilError_t anvilHostEmptyCache(void) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    Memory().EmptyCache();
    return ANVIL_SUCCESS;
  });
}

int anvilHostIsPinned(const void* ptr) {
  return !IsForkedChild() && Memory().Contains(ptr) ? 1 : 0;
}

anvilError_t anvilHostGetStats(anvilHostStats* stats) {
  return Guarded([&] {
    if (stats == nullptr) return FailNull("anvilHostGetStats", "stats");
    if (IsForkedChild()) return FailForked();
    Memory().WithStats([stats](const anvilHostStats& current) { *stats = current; });
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilHostResetPeakStats(void) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    Memory().WithStats([](anvilHostStats& stats) {
      for (anvilStat* stat : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes}) {
        ResetPeak(*stat);
      }
    });
    return ANVIL_SUCCESS;
  });
}

anvilError_t anvilHostResetAccumulatedStats(void) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    Memory().WithStats([](anvilHostStats& stats) {
      for (anvilStat* stat : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes}) {
        ResetAccumulated(*stat);
      }
    });
    return ANVIL_SUCCESS;
  });
}
