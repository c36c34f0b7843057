// SPDX-License-Identifier: Apache-2.0
#include "offload_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "units.h"

namespace anvil {
namespace {

constexpr size_t kPiece = size_t{8} << 20;  // of a read; a transfer is at most 2 GiB anyway

std::string Words(int error) { return std::strerror(error); }

// Not every file system makes files without a name.
int OpenUnnamed(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = folder + "/anvil-offload-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

bool IsInMemory(const struct statfs& system) {
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC ||
         system.f_type == HUGETLBFS_MAGIC;
}

// `transfer(file, base, size, offset)` is pread or pwrite: again until all has gone.
template <typename Transfer, typename Byte>
std::string TransferAll(Transfer transfer, int file, Byte* base, size_t size, size_t offset) {
  while (size > 0) {
    const ssize_t moved = transfer(file, base, size, static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return Words(errno);
    if (moved == 0) return "the file ends early";
    base += moved;
    size -= static_cast<size_t>(moved);
    offset += static_cast<size_t>(moved);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<OffloadFile>> OffloadFile::Create(const std::string& folder, size_t bytes) {
  using Made = Result<std::unique_ptr<OffloadFile>>;
  struct statfs system{};
  if (statfs(folder.c_str(), &system) != 0) return Made::Error(folder + ": " + Words(errno));
  if (IsInMemory(system)) {
    return Made::Error(folder + " is a file system in memory, so that nothing would be returned");
  }
  const int file = OpenUnnamed(folder);
  if (file < 0) return Made::Error("no file can be made in " + folder + ": " + Words(errno));
  std::unique_ptr<OffloadFile> made(new OffloadFile(file));
  // Found out before anything is written.
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    return Made::Error(FormatBytes(bytes) + " cannot be kept in " + folder + ": " + Words(error));
  }
  return {std::move(made), {}};
}

OffloadFile::~OffloadFile() {
  // The system gives its pages and blocks back within the call, which takes longer than reading
  // them did: nobody has to wait for that.
  try {
    std::thread([file = file_] { close(file); }).detach();
  } catch (const std::system_error&) {
    close(file_);
  }
}

std::string OffloadFile::Write(const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    std::string failure = TransferAll(pwrite, file_, range.base, range.size, range.offset);
    if (!failure.empty()) return failure;
  }
  return fdatasync(file_) == 0 ? std::string{} : Words(errno);
}

std::string OffloadFile::Read(const std::vector<Range>& ranges, int threads) {
  std::vector<Range> pieces;
  for (const Range& range : ranges) {
    for (size_t begin = 0; begin < range.size; begin += kPiece) {
      const size_t size = std::min(kPiece, range.size - begin);
      pieces.push_back({range.base + begin, size, range.offset + begin});
    }
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::string failure;  // the first
  const auto read = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const Range& piece = pieces[i];
      std::string words = TransferAll(pread, file_, piece.base, piece.size, piece.offset);
      if (words.empty()) continue;
      next = pieces.size();
      std::lock_guard lock(mutex);
      if (failure.empty()) failure = std::move(words);
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back(read);
    } catch (const std::system_error&) {
      // As many as the system lets us have.
    }
    read();
  }
  return failure;
}

}  // namespace anvil
