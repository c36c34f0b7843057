// SPDX-License-Identifier: Apache-2.0
#include "stream_order.h"

#include <algorithm>

#include "allocator.h"
#include "device.h"
#include "error.h"
#include "sanitizer.h"
#include "stream.h"
#include "transfer.h"

namespace anvil {
namespace {

Device& DeviceOf(const Block* block) {
  Device* device = nullptr;
  GetDevice(AllocatorOf(block).device(), &device);  // exists, since the block does
  return *device;
}

anvilCommand FillBlock(Block* block, int value) {
  return FillCommand(value == 0 ? "zero fill" : "poison", DeviceOf(block).workers, block->ptr,
                     value, block->size);
}

anvilError_t DoNothing(void*) { return ANVIL_SUCCESS; }

// One of the streams that used a block has come to where it was freed.
void EndUse(void* arg) {
  StreamUses* uses = static_cast<StreamUses*>(arg);
  if (uses->pending.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  Block* block = uses->block;
  block->uses = nullptr;
  delete uses;
  FreeHeldBack(block);
}

}  // namespace

bool DeviceStreams::WaitIdle() {
  if (InsideCommand()) return false;
  device_.streams.WaitIdle();
  return true;
}

std::vector<StreamOrder::Stream> DeviceStreams::Streams() {
  std::vector<Stream> streams;
  for (const auto& stream : device_.streams.All()) {
    streams.push_back({stream->id, stream->busy()});
  }
  return streams;
}

bool StreamUses::Contains(Use use) const {
  return std::any_of(list.begin(), list.end(), [use](const Use& other) {
    return other.device == use.device && other.stream == use.stream;
  });
}

anvilError_t FillInOrder(anvilStream_t stream, Block* block, int value) {
  anvilCommand command = FillBlock(block, value);
  const anvilAccess access{block, block->ptr, block->size, ANVIL_ACCESS_WRITE};
  command.accesses = &access;
  command.access_count = 1;
  return Submit(stream, command);
}

void FreeAfterUses(Block* block) {
  StreamUses* uses = block->uses;
  // One for each stream, and one for this function: the last may come while we are still here.
  uses->pending.store(uses->list.size() + 1, std::memory_order_relaxed);
  for (const StreamUses::Use& use : uses->list) {
    Device* device = nullptr;
    GetDevice(use.device, &device);
    const auto stream = device->streams.Find(use.stream);
    if (stream == nullptr) {
      EndUse(uses);  // gone: it has run everything
    } else {
      // Nobody asks for the outcome: there is none, and the command is destroyed in any case.
      Enqueue(stream.get(), {"free", DoNothing, EndUse, uses, nullptr, 0});
    }
  }
  EndUse(uses);
}

void FreeHeldBack(Block* block) {
  DeviceAllocator& allocator = AllocatorOf(block);
  // What is in an arena is poisoned when it is handed out instead: its graphs write it again.
  if (block->arena == nullptr) {
    // Without memory for the host's part in it the block goes back as it is.
    Guarded([&] {
      Device& device = DeviceOf(block);
      const auto stream = device.streams.Find(allocator.StreamOf(block));  // kImmediate: none
      sanitizer::Freed(block, block->ptr, block->size, stream.get());
      if (!DebugPoison() || allocator.IsSuspended(block)) return ANVIL_SUCCESS;
      if (stream != nullptr) return Enqueue(stream.get(), FillBlock(block, kPoison));
      Fill(device.workers, block->ptr, kPoison, block->size);
      return ANVIL_SUCCESS;
    });
  }
  allocator.Return(block, /*used_since=*/DebugPoison());
}

}  // namespace anvil
