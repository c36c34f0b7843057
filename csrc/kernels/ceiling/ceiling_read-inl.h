// SPDX-License-Identifier: Apache-2.0
//
// Reads memory as fast as a core can: several streams at once, far from each other, keep more loads
// under way than the hardware fetches ahead of a single one.
#pragma once

#include <cstdint>

#include "vec/bytes-inl.h"

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

// The widest register as 64-bit sums, which wrap around.
struct WordSums {
  Bytes sums;
  static WordSums zero() { return {Bytes{}}; }
#if ANVIL_VECTOR_BYTES == 64
  void add(Bytes words) { sums.value = _mm512_add_epi64(sums.value, words.value); }
#elif ANVIL_VECTOR_BYTES == 32
  void add(Bytes words) { sums.value = _mm256_add_epi64(sums.value, words.value); }
#else
  void add(Bytes words) { sums.value += words.value; }
#endif
  uint64_t total() const {
    uint64_t words[sizeof(Bytes) / 8];
    sums.store(reinterpret_cast<char*>(words));
    uint64_t result = 0;
    for (uint64_t word : words) result += word;
    return result;
  }
};

inline int64_t ceiling_read(const char* data, int64_t begin, int64_t end) {
  constexpr int64_t kStep = sizeof(Bytes);
  constexpr int64_t kLine = 64, kStreams = 4, kAhead = 512;
  constexpr int64_t kLongest = 256 << 10;  // bytes of a stream
  WordSums sums[kStreams];
  for (WordSums& sum : sums) sum = WordSums::zero();
  int64_t at = begin;
  while (end - at >= kStreams * kLine) {
    const int64_t share = (end - at) / (kStreams * kLine) * kLine;
    const int64_t length = share < kLongest ? share : kLongest;
    for (int64_t line = 0; line < length; line += kLine) {
#pragma GCC unroll 4
      for (int64_t stream = 0; stream < kStreams; ++stream) {
        const char* from = data + at + stream * length + line;
        __builtin_prefetch(from + kAhead);
#pragma GCC unroll 8
        for (int64_t i = 0; i < kLine; i += kStep) sums[stream].add(Bytes::load(from + i));
      }
    }
    at += kStreams * length;
  }
  for (; at + kStep <= end; at += kStep) sums[0].add(Bytes::load(data + at));
  uint64_t result = 0;
  for (const WordSums& sum : sums) result += sum.total();
  for (; at < end; at += 8) {
    uint64_t word = 0;
    if (end - at >= 8) {
      __builtin_memcpy(&word, data + at, 8);
    } else {
      for (int64_t i = at; i < end; ++i) word += static_cast<unsigned char>(data[i]);
    }
    result += word;
  }
  return static_cast<int64_t>(result);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
