// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best. Unlike other ops these use all cores on CPU tensors too, as
// PyTorch's threads: a figure for one core says nothing about what others should reach.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <mutex>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

int all_threads(c10::Device device) {
  return device.is_cpu() ? at::get_num_threads() : worker_count(device.index());
}

template <typename Body>
void on_all_threads(c10::Device device, int64_t count, int64_t grain, const Body& body) {
  if (device.is_cpu()) {
    at::parallel_for(0, count, grain, body);
  } else {
    on_workers(device.index(), count, grain, body);
  }
}

at::Tensor ceiling_read(const at::Tensor& buffer) {
  constexpr Checks check("anvil::ceiling_read");
  TORCH_CHECK_VALUE(buffer.is_contiguous(), check.op(),
                    ": buffer must be contiguous, but its strides are ", buffer.strides(),
                    " for shape ", buffer.sizes());
  at::Tensor result = at::empty({1}, buffer.options().dtype(at::kLong));
  const auto* data = static_cast<const char*>(buffer.const_data_ptr());
  const auto bytes = static_cast<int64_t>(buffer.nbytes());
  int64_t* sum = result.mutable_data_ptr<int64_t>();
  const auto kernel = kernels::active_table().ceiling_read;
  const c10::Device device = buffer.device();
  launch(check.op(), device, {buffer}, {result}, [=] {
    // Ranges begin at a page: words are then counted from one place however it is split.
    constexpr int64_t kPage = 4096;
    std::atomic<uint64_t> total = 0;
    on_all_threads(device, (bytes + kPage - 1) / kPage, grain_of(kPage),
                   [&](int64_t begin, int64_t end) {
                     const int64_t last = std::min(end * kPage, bytes);
                     total += static_cast<uint64_t>(kernel(data, begin * kPage, last));
                   });
    *sum = static_cast<int64_t>(total.load());
  });
  return result;
}

at::Tensor ceiling_arithmetic(const at::Tensor& seed, int64_t steps) {
  constexpr Checks check("anvil::ceiling_arithmetic");
  const kernels::ElementType type = check.float_type(seed, "seed");
  TORCH_CHECK_VALUE(seed.is_contiguous() && seed.numel() > 0, check.op(),
                    ": seed must be contiguous and hold a number at least, but its shape is ",
                    seed.sizes(), " and its strides are ", seed.strides());
  check.at_least(steps, "steps", 0);
  at::Tensor result = at::empty({2}, seed.options().dtype(at::kDouble));
  const kernels::CeilingArithmeticArgs args = {
      .seed = seed.const_data_ptr(), .count = seed.numel(), .type = type, .steps = steps};
  double* results = result.mutable_data_ptr<double>();
  const auto kernel = kernels::active_table().ceiling_arithmetic;
  const c10::Device device = seed.device();
  launch(check.op(), device, {seed}, {result}, [=] {
    std::mutex mutex;
    kernels::CeilingArithmeticResult all = {0, 0};
    on_all_threads(device, all_threads(device), 1, [&](int64_t begin, int64_t end) {
      for (int64_t core = begin; core < end; ++core) {
        const kernels::CeilingArithmeticResult own = kernel(args);
        const std::lock_guard lock(mutex);
        all.operations += own.operations;
        all.checksum += own.checksum;
      }
    });
    results[0] = all.operations;
    results[1] = all.checksum;
  });
  return result;
}

ANVIL_OPS(m) {
  m.impl("ceiling_read", &ceiling_read);
  m.impl("ceiling_arithmetic", &ceiling_arithmetic);
}

}  // namespace
}  // namespace anvil::ops
