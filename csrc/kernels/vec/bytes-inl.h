// SPDX-License-Identifier: Apache-2.0
//
// The widest register as a bag of bytes, and copies made of it.
//
// Like every *-inl.h it is compiled once per instruction set, inside that set's namespace: include
// it from files in isa/ only. Nothing here may call an inline function or template of the standard
// library, since the linker would keep one copy of it for all sets, compiled with any one's flags.
#pragma once

#include <cstdint>

#if ANVIL_VECTOR_BYTES > 8
#include <immintrin.h>
#endif

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

#if ANVIL_VECTOR_BYTES == 64

struct Bytes {
  __m512i value;
  static Bytes load(const char* from) { return {_mm512_loadu_si512(from)}; }
  void store(char* to) const { _mm512_storeu_si512(to, value); }
};

#elif ANVIL_VECTOR_BYTES == 32

struct Bytes {
  __m256i value;
  static Bytes load(const char* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
  }
  void store(char* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
};

#elif ANVIL_VECTOR_BYTES == 8

struct Bytes {
  uint64_t value;
  static Bytes load(const char* from) {
    Bytes bytes;
    __builtin_memcpy(&bytes.value, from, sizeof(bytes.value));
    return bytes;
  }
  void store(char* to) const { __builtin_memcpy(to, &value, sizeof(value)); }
};

#else
#error "ANVIL_VECTOR_BYTES must be 8, 32 or 64"
#endif

static_assert(sizeof(Bytes) == ANVIL_VECTOR_BYTES);

// Copies `count` bytes; the two pieces of memory are disjoint. A cache row is a few hundred bytes,
// for which a call to memcpy costs as much as the copy.
inline void copy_bytes(char* __restrict to, const char* __restrict from, int64_t count) {
  constexpr int64_t kStep = sizeof(Bytes);
  if (count < kStep) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  int64_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep) {
    const Bytes a = Bytes::load(from + i), b = Bytes::load(from + i + kStep);
    const Bytes c = Bytes::load(from + i + 2 * kStep), d = Bytes::load(from + i + 3 * kStep);
    a.store(to + i);
    b.store(to + i + kStep);
    c.store(to + i + 2 * kStep);
    d.store(to + i + 3 * kStep);
  }
  for (; i + kStep <= count; i += kStep) Bytes::load(from + i).store(to + i);
  // The last piece may overlap the one before it, which rewrites the same bytes.
  if (i < count) Bytes::load(from + count - kStep).store(to + count - kStep);
}

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
