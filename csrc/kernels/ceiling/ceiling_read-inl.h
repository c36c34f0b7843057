// SPDX-License-Identifier: Apache-2.0
//
// Reads memory as fast as the machine can. A range is read as several streams at once, far enough
// from each other to lie in different pages: a core has more loads under way by that than the
// hardware fetches ahead of a single stream.
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
  constexpr int64_t kLine = 64;
  constexpr int64_t kStreams = 4, kPiece = 16 << 10, kAhead = 1 << 10;
  WordSums sums[kStreams];
  for (WordSums& sum : sums) sum = WordSums::zero();
  int64_t at = begin;
  for (; at + kStreams * kPiece <= end; at += kStreams * kPiece) {
    const char* piece = data + at;
    for (int64_t line = 0; line < kPiece; line += kLine) {
#pragma GCC unroll 4
      for (int64_t stream = 0; stream < kStreams; ++stream) {
        const char* from = piece + stream * kPiece + line;
        __builtin_prefetch(from + kAhead);
#pragma GCC unroll 8
        for (int64_t i = 0; i < kLine; i += kStep) sums[stream].add(Bytes::load(from + i));
      }
    }
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
