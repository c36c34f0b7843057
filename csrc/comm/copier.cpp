// SPDX-License-Identifier: Apache-2.0
#include "copier.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "anvil/runtime.h"
#include "error.h"
#include "segment.h"

namespace anvil::comm {
namespace {

// Less is not worth waking another worker for.
constexpr size_t kGrainBytes = 32 << 10;

// Results from here on are not expected to be found in the cache by whoever reads them.
constexpr size_t kStreamedBytes = 4 << 20;

// Lines of the board are in the cache of whoever read them last. To write them through one's own
// cache takes each of them over from there, one after the other where the two cores lie far apart:
// 3.6 us for 8 KiB on a Zen 4, 0.6 us past the caches. The reader then finds them in memory, which
// does not matter as long as there are few. A large message does better in a shared cache.
constexpr size_t kLeastPosted = 2 << 10;
constexpr size_t kMostPosted = 1 << 20;

void Stream(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kVector = 64;
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) % kVector;
  const size_t head = std::min(bytes, misaligned == 0 ? 0 : kVector - misaligned);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + kVector <= bytes; i += kVector) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    for (int part = 0; part < 4; ++part) {
      _mm_stream_si128(target + part, _mm_loadu_si128(source + part));
    }
  }
  _mm_sfence();
  std::memcpy(to + i, from + i, bytes - i);
#else
  std::memcpy(to, from, bytes);
#endif
}

template <typename Body>
void ForRanges(int device, size_t count, size_t bytes_each, const Body& body) {
  if (device < 0 || count * bytes_each < 2 * kGrainBytes) {
    body(size_t{0}, count);
    return;
  }
  const anvilError_t status = anvilParallelFor(
      device, static_cast<int64_t>(count), static_cast<int64_t>(kGrainBytes / bytes_each),
      [](void* arg, int64_t begin, int64_t end, int) {
        (*static_cast<const Body*>(arg))(static_cast<size_t>(begin), static_cast<size_t>(end));
      },
      const_cast<Body*>(&body));
  if (status != ANVIL_SUCCESS) throw CommError(anvilGetLastErrorMessage());
}

}  // namespace

void Copier::Copy(void* to, const void* from, size_t bytes) const {
  if (to == from || bytes == 0) return;
  ForRanges(device_, bytes, 1, [&](size_t begin, size_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                end - begin);
  });
}

bool Copier::IsPosted(size_t total) { return total <= kMostPosted; }

void Copier::CopyIn(void* to, const void* from, size_t bytes, size_t total) const {
  if (bytes < kLeastPosted || !IsPosted(total)) return Copy(to, from, bytes);
  ForRanges(device_, bytes, 1, [&](size_t begin, size_t end) {
    Stream(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
           end - begin);
  });
}

void Copier::CopyOut(void* to, const void* from, size_t bytes, size_t total) const {
  if (total < kStreamedBytes || to == from) return Copy(to, from, bytes);
  ForRanges(device_, bytes, 1, [&](size_t begin, size_t end) {
    Stream(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
           end - begin);
  });
}

void Copier::Reduce(ReduceFn reduce, DataType type, void* out, const void* const* inputs, int ranks,
                    size_t count) const {
  const size_t size = SizeOf(type);
  ForRanges(device_, count, size, [&](size_t begin, size_t end) {
    const void* parts[kMaxRanks];
    for (int rank = 0; rank < ranks; ++rank) {
      parts[rank] = static_cast<const std::byte*>(inputs[rank]) + begin * size;
    }
    reduce(static_cast<std::byte*>(out) + begin * size, parts, ranks, end - begin);
  });
}

}  // namespace anvil::comm
