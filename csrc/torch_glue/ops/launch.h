// SPDX-License-Identifier: Apache-2.0
// Runs kernels where their tensors live, and registers them there.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "core/command.h"
#include "core/stream.h"
#include "core/workers.h"

// Ops register the same function for the device and for the CPU, where it serves tests and
// comparisons:
//   ANVIL_OPS(m) { m.impl("name", &function); }
#define ANVIL_OPS(m)                                                         \
  static void register_ops(torch::Library& m);                               \
  TORCH_LIBRARY_IMPL(anvil, PrivateUse1, library) { register_ops(library); } \
  TORCH_LIBRARY_IMPL(anvil, CPU, library) { register_ops(library); }         \
  static void register_ops(torch::Library& m)

namespace anvil::ops {

// Bytes a worker should move at least: less is not worth waking another one.
constexpr int64_t kGrainBytes = 32 << 10;

// How many items make up kGrainBytes.
inline int64_t grain_of(int64_t bytes_per_item) {
  return std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes_per_item));
}

// How many threads share an op's work: all of an anvil device, the calling one for the CPU, where
// ops serve comparisons.
inline int threads_of(c10::Device device) {
  return device.is_cpu() ? 1 : worker_count(device.index());
}

// Calls kernel(begin, end) on ranges of at least `grain` that make up [0, count), on threads_of the
// device.
template <typename Kernel>
void for_ranges(c10::Device device, int64_t count, int64_t grain, const Kernel& kernel) {
  if (count <= 0) return;
  if (device.is_cpu()) {
    kernel(int64_t{0}, count);
  } else {
    on_workers(device.index(), count, grain, kernel);
  }
}

using Tensors = std::initializer_list<std::reference_wrapper<const at::Tensor>>;

// Runs body() where the op's tensors live: at once for the CPU, as a command of the current stream
// for an anvil device. What the tensors hold may be looked at inside body() only, which may be run
// several times (by a graph). `reads` with `listed`, and `writes`, are all tensors whose memory it
// uses; their memory outlasts the command. `name` lives as long as the process.
template <typename Body>
void launch(const char* name, c10::Device device, Tensors reads, at::TensorList listed,
            Tensors writes, Body&& body) {
  if (device.is_cpu()) return body();
  Accesses accesses(current_stream_handle(device.index()));
  for (const at::Tensor& tensor : reads) {
    if (tensor.defined()) accesses.read(tensor);
  }
  for (const at::Tensor& tensor : listed) accesses.read(tensor);
  for (const at::Tensor& tensor : writes) {
    if (tensor.defined()) accesses.write(tensor);
  }
  submit(name, accesses, std::forward<Body>(body));
}

template <typename Body>
void launch(const char* name, c10::Device device, Tensors reads, Tensors writes, Body&& body) {
  launch(name, device, reads, at::TensorList(), writes, std::forward<Body>(body));
}

}  // namespace anvil::ops
