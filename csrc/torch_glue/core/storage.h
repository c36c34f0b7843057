// SPDX-License-Identifier: Apache-2.0
// Device storages and their host twins.
//
// Device memory is host memory, so PyTorch's own CPU kernels can run on it without a copy. Each
// device storage therefore owns a twin: a CPU storage over the same bytes. The twin owns the
// memory; the device storage's DataPtr holds the twin as its context. Two tensors that share a
// device storage share its twin, so aliasing survives the round trip.
#pragma once

#include <c10/core/Storage.h>

#include "core/device.h"

namespace anvil {

// A new device storage over fresh device memory. `zeroed` asks for zeros, at no cost where the
// pages are new.
c10::intrusive_ptr<c10::StorageImpl> new_storage(size_t bytes, c10::DeviceIndex device,
                                                 bool zeroed = false);

// A DataPtr of the device over fresh memory, twin included: what the allocator hands out.
at::DataPtr new_data_ptr(size_t bytes, c10::DeviceIndex device, bool zeroed = false);

// The twin of a device storage. For memory that did not come from our allocator (from_blob, DLPack)
// a twin is made for this call; it keeps `storage` alive.
c10::intrusive_ptr<c10::StorageImpl> host_twin(const c10::Storage& storage);

// One more reference to what a Storage holds.
inline c10::intrusive_ptr<c10::StorageImpl> share(const c10::Storage& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl());
}

// A device storage whose twin is the given CPU storage. Nothing is copied.
c10::Storage adopt_host_storage(c10::intrusive_ptr<c10::StorageImpl> host, c10::Device device);

// After a CPU kernel may have resized the twin: gives the device storage the twin's address and
// size.
void follow_twin(c10::StorageImpl& storage, const c10::intrusive_ptr<c10::StorageImpl>& twin);

// Changes the size of a device storage; keeps the bytes that fit. Views see the change, as on any
// device.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace anvil
