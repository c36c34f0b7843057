// SPDX-License-Identifier: Apache-2.0
#include "transfer.h"

#include <cstdint>
#include <cstring>

#include "device.h"
#include "error.h"
#include "process.h"

namespace anvil {
namespace {

// Below this, waking a worker costs more than it brings.
constexpr size_t kSplitAbove = size_t{1} << 20;
constexpr int64_t kGrain = int64_t{256} << 10;

struct Transfer {
  WorkerPool* workers;
  std::byte* dst;
  const std::byte* src;  // null: fill
  int value;
  size_t bytes;
};

void RunRange(void* arg, int64_t begin, int64_t end, int) {
  const Transfer& transfer = *static_cast<const Transfer*>(arg);
  std::byte* dst = transfer.dst + begin;
  const size_t bytes = static_cast<size_t>(end - begin);
  if (transfer.src != nullptr) {
    std::memcpy(dst, transfer.src + begin, bytes);
  } else {
    std::memset(dst, transfer.value, bytes);
  }
}

void RunTransfer(Transfer& transfer) {
  const int64_t bytes = static_cast<int64_t>(transfer.bytes);
  if (transfer.bytes <= kSplitAbove) return RunRange(&transfer, 0, bytes, 0);
  // The ranges do not throw, so that the region cannot fail.
  transfer.workers->Run(bytes, kGrain, RunRange, &transfer);
}

anvilError_t RunCommand(void* arg) {
  RunTransfer(*static_cast<Transfer*>(arg));
  return ANVIL_SUCCESS;
}

void DestroyCommand(void* arg) { delete static_cast<Transfer*>(arg); }

anvilError_t SubmitTransfer(anvilStream_t stream, const char* name, Transfer transfer) {
  transfer.workers = &stream->device->workers;
  anvilAccess accesses[2];
  size_t access_count = 0;
  if (anvilStreamWantsAccesses(stream) != 0) {
    accesses[access_count++] = {nullptr, transfer.dst, transfer.bytes, ANVIL_ACCESS_WRITE};
    if (transfer.src != nullptr) {
      accesses[access_count++] = {nullptr, transfer.src, transfer.bytes, ANVIL_ACCESS_READ};
    }
  }
  return Submit(stream,
                {name, RunCommand, DestroyCommand, new Transfer(transfer), accesses, access_count});
}

bool Overlap(const void* a, const void* b, size_t bytes) {
  const uintptr_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y ? y - x < bytes : x - y < bytes;
}

}  // namespace

void Fill(WorkerPool& workers, void* dst, int value, size_t bytes) {
  Transfer transfer{&workers, static_cast<std::byte*>(dst), nullptr, value, bytes};
  RunTransfer(transfer);
}

anvilCommand FillCommand(const char* name, WorkerPool& workers, void* dst, int value,
                         size_t bytes) {
  auto* transfer = new Transfer{&workers, static_cast<std::byte*>(dst), nullptr, value, bytes};
  return {name, RunCommand, DestroyCommand, transfer, nullptr, 0};
}

}  // namespace anvil

using namespace anvil;

anvilError_t anvilMemcpyAsync(void* dst, const void* src, size_t bytes, anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilMemcpyAsync", "stream");
    if (bytes == 0) return ANVIL_SUCCESS;
    if (dst == nullptr) return FailNull("anvilMemcpyAsync", "dst");
    if (src == nullptr) return FailNull("anvilMemcpyAsync", "src");
    if (Overlap(dst, src, bytes)) {
      return Fail(ANVIL_ERROR_INVALID_VALUE, "anvilMemcpyAsync: source and destination overlap.");
    }
    return SubmitTransfer(
        stream, "memcpy",
        {nullptr, static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), 0, bytes});
  });
}

anvilError_t anvilMemsetAsync(void* dst, int value, size_t bytes, anvilStream_t stream) {
  return Guarded([&] {
    if (IsForkedChild()) return FailForked();
    if (stream == nullptr) return FailNull("anvilMemsetAsync", "stream");
    if (bytes == 0) return ANVIL_SUCCESS;
    if (dst == nullptr) return FailNull("anvilMemsetAsync", "dst");
    return SubmitTransfer(stream, "memset",
                          {nullptr, static_cast<std::byte*>(dst), nullptr, value, bytes});
  });
}
