// SPDX-License-Identifier: Apache-2.0
// Copies and reductions on the workers of a device.
#pragma once

#include <cstddef>

#include "reduce.h"

namespace anvil::comm {

class Copier {
 public:
  // `device`: whose workers share the work; below 0, the calling thread does it alone.
  explicit Copier(int device) : device_(device) {}

  void Copy(void* to, const void* from, size_t bytes) const;
  // Whether a message of `total` bytes goes onto the board past the caches.
  static bool IsPosted(size_t total);
  // Onto the board, for a part of a message of `total` bytes.
  void CopyIn(void* to, const void* from, size_t bytes, size_t total) const;
  // For a part of a result of `total` bytes: one that is too large to stay in the cache goes to
  // memory directly, which is not read for it first.
  void CopyOut(void* to, const void* from, size_t bytes, size_t total) const;
  void Reduce(ReduceFn reduce, DataType type, void* out, const void* const* inputs, int ranks,
              size_t count) const;

 private:
  const int device_;
};

}  // namespace anvil::comm
