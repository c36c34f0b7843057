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

// Reserves addresses like MapMemory's, without memory behind them: no use of any until it is
// backed.
std::byte* ReserveAddresses(size_t bytes, int numa_node, int device);

// Puts memory behind [base + backed, base + backed + more) of a reservation of which the first
// `backed` bytes have some. False, with errno, when the host refuses.
bool BackAddresses(std::byte* base, size_t backed, size_t more);

// Returns the memory behind a mapping to the operating system: its addresses stay reserved, with no
// use of any until it is restored. False, with errno, when the host refuses.
bool DropMemory(std::byte* base, size_t bytes);

// Puts memory behind a dropped mapping again, zero-filled and untouched.
bool RestoreMemory(std::byte* base, size_t bytes);

// Returns a whole mapping or reservation to the operating system.
void UnmapMemory(std::byte* base, size_t bytes);

// The device that owns the memory at `address`; -1 when there is none.
int OwnerOf(const void* address);

}  // namespace anvil
