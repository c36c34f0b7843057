// SPDX-License-Identifier: Apache-2.0
#include "scratch.h"

#include <cstdlib>

namespace anvil::triton {
namespace {

// More than a thread can have on any host: sizes beyond are some mistake.
constexpr size_t kLargest = size_t{1} << 39;

class Arena {
 public:
  ~Arena() { std::free(memory_); }

  void* at_least(size_t bytes) noexcept {
    if (bytes <= capacity_) return memory_;
    std::free(memory_);
    const size_t rounded = (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    memory_ = bytes <= kLargest ? std::aligned_alloc(kScratchAlignment, rounded) : nullptr;
    capacity_ = memory_ != nullptr ? rounded : 0;
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
