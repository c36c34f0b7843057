// SPDX-License-Identifier: Apache-2.0
// Contents of memory that is not needed for a while, on disk.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "error.h"

namespace anvil {

// A file without a name: nothing of it is left when it is closed, or when the process is killed.
class OffloadFile {
 public:
  struct Range {
    std::byte* base;
    size_t size;
    size_t offset;  // of its contents in the file
  };

  // With room for `bytes` in `folder`. Fails where that is no folder to write to, where it has less
  // room, and where it lies in memory (tmpfs), so that nothing would be won.
  static Result<std::unique_ptr<OffloadFile>> Create(const std::string& folder, size_t bytes);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  // Writes the ranges and waits for the disk, since until then the operating system holds them in
  // memory. The result is what went wrong, or empty.
  std::string Write(const std::vector<Range>& ranges);
  // Reads the ranges, several at once: most of the time is the copying, as long as the operating
  // system still has the file's contents. By threads of its own: the caller is not on a core of the
  // device's, where a worker pool would find it in the way of its own threads.
  std::string Read(const std::vector<Range>& ranges, int threads);

 private:
  explicit OffloadFile(int file) : file_(file) {}

  const int file_;
};

}  // namespace anvil
