// SPDX-License-Identifier: Apache-2.0
// Compiled objects (ELF relocatables for x86-64) made runnable.
//
// All of an object lies in one mapping, with a table of addresses and jumps for the few functions
// of libc that compilers call by themselves. So every reference inside the object is within reach,
// wherever the process has its libraries, and every one to the outside is a whole address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace anvil::triton {

class LoadedObject {
 public:
  // Throws std::invalid_argument when the bytes are no such object, are damaged, or need what is
  // not here; std::runtime_error when the operating system refuses memory.
  explicit LoadedObject(std::span<const std::byte> object);
  ~LoadedObject();
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;

  // Address of a function that the object defines; throws std::invalid_argument for others.
  void* function(std::string_view name) const;

 private:
  std::byte* mapping_ = nullptr;
  size_t bytes_ = 0;
  std::unordered_map<std::string, void*> functions_;
};

}  // namespace anvil::triton
