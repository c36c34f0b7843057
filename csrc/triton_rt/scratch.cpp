// SPDX-License-Identifier: Apache-2.0
#include "scratch.h"

#include <cstdlib>

namespace anvil::triton {
namespace {

class Arena {
 public:
  ~Arena() { std::free(memory_); }

  void* at_least(size_t bytes) noexcept {
    if (bytes > capacity_) {
      const size_t rounded =
          (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
      std::free(memory_);
      memory_ = rounded < bytes ? nullptr : std::aligned_alloc(kScratchAlignment, rounded);
      capacity_ = memory_ != nullptr ? rounded : 0;
    }
    return memory_;
  }

 private:
  void* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace

void* thread_scratch(size_t bytes) noexcept {
  thread_local Arena arena;
  return arena.at_least(bytes);
}

}  // namespace anvil::triton
