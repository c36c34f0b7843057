// SPDX-License-Identifier: Apache-2.0
#include "triton/kernel_call.h"

#include <ATen/Parallel.h>
#include <c10/core/Storage.h>

#include <stdexcept>

#include "core/command.h"
#include "core/pinned.h"
#include "core/storage.h"
#include "core/stream.h"
#include "core/wait.h"
#include "core/workers.h"

namespace anvil {
namespace {

// Shares the programs of a launch on CPU tensors.
void on_pytorch_threads(void*, int count, void (*task)(void*), void* argument) {
  at::parallel_for(0, count, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(argument);
  });
}

triton::Team pytorch_threads() {
  return {.count = at::in_parallel_region() ? 1 : at::get_num_threads(),
          .run = &on_pytorch_threads};
}

void on_device_workers(void* device, int count, void (*task)(void*), void* argument) {
  on_workers(*static_cast<const c10::DeviceIndex*>(device), count, 1,
             [=](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) task(argument);
             });
}

void run(triton::Kernel& kernel, const uint64_t* slots, const triton::Grid& grid,
         const triton::Team& team) {
  const std::string failure = triton::run_grid(kernel, slots, grid, team);
  if (!failure.empty()) throw std::runtime_error(failure);
}

// Of the tensor's first element. Memory that is shared until it is written becomes the tensor's own
// before a kernel may write it.
uint64_t address_of(const at::Tensor& tensor, unsigned flags) {
  c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const void* data = (flags & ANVIL_ACCESS_WRITE) != 0 ? storage->mutable_data() : storage->data();
  return reinterpret_cast<uint64_t>(data) +
         static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
}

const void* host_address(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data();
}

// Like a launch on a device, one on the host comes behind what its stream was given before: events
// around it then take its time, as Triton's benchmarks do.
void wait_for_current_stream() {
  if (anvilIsInUse() == 0 || anvilIsForkedChild() != 0) return;
  anvilStream_t stream = current_stream_handle(current_device());
  if (anvilStreamIsCapturing(stream) == 0) synchronize(stream);
}

}  // namespace

void KernelCall::add_tensor(const at::Tensor& tensor, const char* name, unsigned flags) {
  const c10::Device device = tensor.unsafeGetTensorImpl()->device();
  TORCH_CHECK_TYPE((device.type() == kAnvil || device.is_cpu()) && tensor.has_storage(),
                   "Triton kernel ", kernel_->name, ": argument ", name, " is a tensor on ", device,
                   " with layout ", tensor.layout(),
                   "; kernels take dense tensors on anvil devices or the CPU");
  TORCH_CHECK_TYPE(tensor.unsafeGetTensorImpl()->unsafe_storage().device_type() == device.type(),
                   "Triton kernel ", kernel_->name, ": argument ", name,
                   " is a tensor without memory, such as a fake one");
  slots_.push_back(address_of(tensor, flags));
  if (device.is_cpu()) {
    on_host_.push_back({&tensor, name, flags});
  } else {
    meet(device.index(), name);
    on_device_.push_back({&tensor, name, flags});
  }
}

void KernelCall::add_owned_tensor(at::Tensor tensor, const char* name, unsigned flags) {
  owned_.push_back(std::make_unique<at::Tensor>(std::move(tensor)));
  add_tensor(*owned_.back(), name, flags);
}

void KernelCall::add_address(uint64_t address, const char* name) {
  slots_.push_back(address);
  int device = 0;
  if (address != 0 && anvilIsInitialized() != 0 &&
      anvilPointerGetDevice(&device, reinterpret_cast<const void*>(address)) == ANVIL_SUCCESS) {
    meet(static_cast<c10::DeviceIndex>(device), name);
  }
}

void KernelCall::meet(c10::DeviceIndex device, const char* name) {
  if (device_ == -1) {
    device_ = device;
    device_name_ = name;
  }
  TORCH_CHECK(device_ == device, "Triton kernel ", kernel_->name, ": argument ", device_name_,
              " is on anvil:", static_cast<int>(device_), " but ", name,
              " is on anvil:", static_cast<int>(device), "; move them to one device");
}

void KernelCall::launch(const triton::Grid& grid) {
  if (grid.programs() == 0) return;
  if (device_ != -1) return queue(grid);
  wait_for_current_stream();
  try {
    run(*kernel_, slots_.data(), grid, pytorch_threads());
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "Triton kernel ", kernel_->name, " failed: ", error.what());
  }
}

void KernelCall::queue(const triton::Grid& grid) {
  anvilStream_t stream = current_stream_handle(device_);
  Accesses accesses(stream);
  // Memory of the device outlives the command by the stream's order; that of others is held.
  c10::SmallVector<c10::Storage, 1> held;
  for (const Use& use : on_device_) {
    accesses.add(*use.tensor, use.flags);
    const c10::Storage& storage = use.tensor->unsafeGetTensorImpl()->unsafe_storage();
    if (storage.nbytes() > 0 && use_on_stream(*storage.unsafeGetStorageImpl(), stream) == nullptr)
      held.push_back(storage);
  }
  bool waits = false;
  for (const Use& use : on_host_) {
    const bool pinned = anvilHostIsPinned(host_address(*use.tensor)) != 0;
    if (pinned) accesses.add(*use.tensor, use.flags);
    waits = waits || (!pinned && use.tensor->unsafeGetTensorImpl()->unsafe_storage().nbytes() > 0);
  }
  if (waits) {
    refuse_while_capturing(stream, "A Triton kernel with a CPU tensor that is not pinned");
  }
  submit(kernel_->name.c_str(), accesses,
         [kernel = kernel_, slots = slots_, held = std::move(held), grid, device = device_] {
           c10::DeviceIndex index = device;
           run(*kernel, slots.data(), grid,
               {.count = worker_count(index), .run = &on_device_workers, .context = &index});
         });
  for (const Use& use : on_host_) keep_pinned_until_now(host_address(*use.tensor), stream);
  if (waits) synchronize(stream);
}

}  // namespace anvil
