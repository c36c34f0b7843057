// SPDX-License-Identifier: Apache-2.0
// Device storages, the memory behind them, and their host twins.
//
// Device memory is host memory, so PyTorch's own CPU kernels can run on it without a copy. Each
// device storage therefore has a twin: a CPU storage over the same bytes, which owns nothing. Two
// tensors that share a device storage share its twin, so aliasing survives the round trip.
//
// The memory belongs to the device storage alone and is freed with it, in the order of the stream
// it was allocated on: queued commands, which hold twins, may still use it, and later commands of
// that stream may have it again. What other streams use is told to the runtime (use_on_stream).
#pragma once

#include <c10/core/Storage.h>

#include "core/device.h"

namespace anvil {

// A new device storage over fresh memory in the order of the current stream. `zeroed` asks for
// zeros, at no cost where the pages are new.
c10::intrusive_ptr<c10::StorageImpl> new_storage(size_t bytes, c10::DeviceIndex device,
                                                 bool zeroed = false);

// A DataPtr of the device over fresh memory, twin included: what the allocator hands out.
at::DataPtr new_data_ptr(size_t bytes, c10::DeviceIndex device, bool zeroed = false);

// A device storage over a block that was allocated for `stream`; takes the block over.
c10::intrusive_ptr<c10::StorageImpl> storage_over(anvilBlock_t block, void* address, size_t bytes,
                                                  anvilStream_t stream, c10::DeviceIndex device);

// The twin of a device storage. For memory that did not come from our allocator (from_blob, DLPack)
// a twin is made for this call; it keeps `storage` alive.
c10::intrusive_ptr<c10::StorageImpl> host_twin(const c10::Storage& storage);

// One more reference to what a Storage holds.
inline c10::intrusive_ptr<c10::StorageImpl> share(const c10::Storage& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl());
}

// A device storage that takes over the memory of the given CPU storage, which becomes its twin.
// Nothing is copied.
c10::Storage adopt_host_storage(c10::intrusive_ptr<c10::StorageImpl> host, c10::Device device);

// After a CPU kernel may have resized the twin: gives the device storage the twin's address and
// size, and its new memory.
void follow_twin(c10::StorageImpl& storage, const c10::intrusive_ptr<c10::StorageImpl>& twin);

// Changes the size of a device storage; keeps the bytes that fit. Views see the change, as on any
// device.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

// Commands that are now being submitted to `stream` use the storage: keeps its memory from being
// handed out again before they have run. Gives the block, or null for memory that is not ours.
anvilBlock_t use_on_stream(const at::DataPtr& data, anvilStream_t stream);
inline anvilBlock_t use_on_stream(const c10::StorageImpl& storage, anvilStream_t stream) {
  return use_on_stream(const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks(),
                       stream);
}

}  // namespace anvil
