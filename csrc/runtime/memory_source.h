// SPDX-License-Identifier: Apache-2.0
// Where device memory comes from: anonymous mappings, and the record of which device owns which.
#pragma once

#include <cstddef>

namespace anvil {

inline constexpr size_t kPageSize = 4096;  // unit and alignment of all but small blocks
inline constexpr size_t kSegmentGranule = size_t{2} << 20;  // also the size of a huge page

inline constexpr size_t RoundUp(size_t bytes, size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

// Maps `bytes` (a multiple of the segment granule) of zero-filled, untouched memory, aligned to the
// granule and backed by huge pages where the kernel has them. With numa_node >= 0 pages come from
// that node while it has any. Returns null with errno set when the host refuses.
std::byte* MapMemory(size_t bytes, int numa_node, int device);

// Returns a whole mapping to the operating system.
void UnmapMemory(std::byte* base, size_t bytes);

// The device that owns the mapping around `address`; -1 when there is none.
int OwnerOf(const void* address);

}  // namespace anvil
