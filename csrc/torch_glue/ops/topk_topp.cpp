// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <optional>

#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::topk_topp");

// One number for each row of the logits, or nothing at all.
at::Tensor per_row(const std::optional<at::Tensor>& values, const char* name, at::ScalarType dtype,
                   const at::Tensor& logits) {
  if (!values.has_value() || !values->defined()) return {};
  kCheck.index_array(*values, name, dtype);
  kCheck.device(*values, name, logits.device());
  kCheck.disjoint(logits, "logits", *values, name);
  TORCH_CHECK_VALUE(values->size(0) == logits.size(0), kCheck.op(), ": ", name, " has ",
                    values->size(0), " elements for ", logits.size(0), " rows of logits");
  return *values;
}

void topk_topp(at::Tensor& logits, const std::optional<at::Tensor>& k,
               const std::optional<at::Tensor>& p, double mask_value) {
  kCheck.dtype(logits, "logits", at::kFloat);
  kCheck.dim(logits, "logits", 2);
  kCheck.last_dim_contiguous(logits, "logits");
  kCheck.writable(logits, "logits");
  const at::Tensor ks = per_row(k, "k", at::kInt, logits);
  const at::Tensor ps = per_row(p, "p", at::kFloat, logits);
  const int64_t rows = logits.size(0), vocab_size = logits.size(1);
  if (logits.numel() == 0 || !(ks.defined() || ps.defined())) return;

  // Rows are cut into as many ranges as there are cores, each with scratch of its own.
  const c10::Device device = logits.device();
  const int64_t cores = device.is_cpu() ? 1 : anvilWorkerCount(device.index());
  const int64_t ranges = std::min(rows, cores);
  const int64_t scratch_stride = vocab_size + kernels::kTopkToppSlack;
  const at::Tensor scratch = at::empty({ranges, scratch_stride}, logits.options());
  const kernels::TopkToppArgs args = {
      .logits = logits.mutable_data_ptr<float>(),
      .k = ks.defined() ? ks.const_data_ptr<int32_t>() : nullptr,
      .p = ps.defined() ? ps.const_data_ptr<float>() : nullptr,
      .scratch = scratch.mutable_data_ptr<float>(),
      .row_stride = logits.stride(0),
      .vocab_size = vocab_size,
      .mask_value = static_cast<float>(mask_value),
  };
  const auto kernel = kernels::active_table().topk_topp;
  launch(kCheck.op(), device, {ks, ps}, {logits, scratch}, [=] {
    for_ranges(device, ranges, 1, [&](int64_t begin, int64_t end) {
      kernels::TopkToppArgs own = args;
      own.scratch += begin * scratch_stride;
      kernel(own, rows * begin / ranges, rows * end / ranges);
    });
  });
}

ANVIL_OPS(m) { m.impl("topk_topp", &topk_topp); }

}  // namespace
}  // namespace anvil::ops
