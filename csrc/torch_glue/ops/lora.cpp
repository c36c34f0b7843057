// SPDX-License-Identifier: Apache-2.0
#include "ops/lora.h"

#include <algorithm>

namespace anvil::ops {

LoraCall lora_call(const Checks& check, at::TensorList weights, const char* name, int inner,
                   int rank_dim, const LoraTokens& tokens, c10::Device device, int64_t rows) {
  TORCH_CHECK_VALUE(!weights.empty(), check.op(), ": ", name, " lists no weight");
  const at::Tensor& first = weights[0];
  LoraCall call{.slices = {},
                .weight_type = check.float_type(first, name),
                .adapters = 0,
                .rank = 0,
                .tokens = rows,
                .order = nullptr,
                .starts = nullptr,
                .ranks = nullptr,
                .order_size = 0,
                .check = check};
  int64_t offset = 0;
  for (const at::Tensor& weight : weights) {
    check.dim(weight, name, 3);
    check.device(weight, name, device);
    check.dtype(weight, name, first.scalar_type());
    TORCH_CHECK_VALUE(
        weight.size(0) == first.size(0) && weight.size(rank_dim) == first.size(rank_dim),
        check.op(), ": ", name, " has shapes ", first.sizes(), " and ", weight.sizes(),
        ", but adapters and ranks must agree");
    TORCH_CHECK_VALUE(weight.size(inner) <= 1 || weight.stride(inner) == 1, check.op(), ": ", name,
                      " must have the elements of dimension ", inner,
                      " side by side, but its strides are ", weight.strides());
    const int64_t columns = weight.size(3 - rank_dim);
    call.slices.push_back({.weight = weight.const_data_ptr(),
                           .adapter_stride = weight.stride(0),
                           .rank_stride = weight.stride(rank_dim),
                           .columns = columns,
                           .offset = offset});
    offset += columns;
  }
  call.adapters = first.size(0);
  call.rank = first.size(rank_dim);

  check.index_array(tokens.order, "order", at::kInt);
  check.device(tokens.order, "order", device);
  check.index_array(tokens.starts, "starts", at::kInt);
  check.device(tokens.starts, "starts", device);
  TORCH_CHECK_VALUE(tokens.starts.numel() == call.adapters + 1, check.op(), ": starts has ",
                    tokens.starts.numel(), " elements for ", call.adapters,
                    " adapters, but needs one more than there are");
  call.order = tokens.order.const_data_ptr<int32_t>();
  call.starts = tokens.starts.const_data_ptr<int32_t>();
  call.order_size = tokens.order.numel();
  if (tokens.ranks.defined()) {
    const at::Tensor& ranks = tokens.ranks;
    check.dtype(ranks, "ranks", at::kInt);
    check.device(ranks, "ranks", device);
    const int64_t slices = static_cast<int64_t>(weights.size());
    TORCH_CHECK_VALUE(ranks.dim() == 2 && ranks.size(0) == slices &&
                          ranks.size(1) == call.adapters && ranks.is_contiguous(),
                      check.op(), ": ranks must be contiguous [", slices, ", ", call.adapters,
                      "], a slice a row, but has shape ", ranks.sizes(), " and strides ",
                      ranks.strides());
    call.ranks = ranks.const_data_ptr<int32_t>();
  }
  return call;
}

void LoraCall::check_shrunk(const at::Tensor& shrunk, c10::Device device) const {
  check.dtype(shrunk, "shrunk", at::kFloat);
  check.device(shrunk, "shrunk", device);
  check.dim(shrunk, "shrunk", 3);
  check.last_dim_contiguous(shrunk, "shrunk");
  const int64_t count = static_cast<int64_t>(slices.size());
  TORCH_CHECK_VALUE(shrunk.size(0) == count && shrunk.size(1) == tokens && shrunk.size(2) == rank,
                    check.op(), ": shrunk must be [", count, ", ", tokens, ", ", rank,
                    "], but has shape ", shrunk.sizes());
}

LoraPlan::LoraPlan(const LoraCall& call) {
  const Checks& check = call.check;
  int32_t before = 0;
  check.in_range(call.starts, call.adapters + 1, 1, 0, call.order_size + 1, "starts", 0,
                 "the elements of order and 1");
  for (int64_t a = 0; a <= call.adapters; ++a) {
    // Backwards is as wrong as beyond the end.
    check.in_range(call.starts + a, 1, 1, before, call.order_size + 1, "starts", a,
                   "the elements of order and 1");
    before = call.starts[a];
  }
  const int32_t begin = call.starts[0];
  check.in_range(call.order + begin, before - begin, 1, 0, call.tokens, "order", begin,
                 "the number of tokens");
  const int64_t slices = static_cast<int64_t>(call.slices.size());
  if (call.ranks != nullptr) {
    check.in_range(call.ranks, slices * call.adapters, 1, 0, call.rank + 1, "ranks", 0,
                   "the rank and 1");
  }
  for (int64_t a = 0; a < call.adapters; ++a) {
    for (int64_t t = call.starts[a]; t < call.starts[a + 1]; t += kernels::kLoraRunTokens) {
      runs_.push_back(
          {a, call.order + t, std::min<int64_t>(kernels::kLoraRunTokens, call.starts[a + 1] - t)});
    }
  }
  batch_ = {.runs = runs_.data(),
            .run_count = static_cast<int64_t>(runs_.size()),
            .slices = call.slices.data(),
            .slice_count = slices,
            .weight_type = call.weight_type,
            .ranks = call.ranks,
            .adapters = call.adapters,
            .rank = call.rank};
}

}  // namespace anvil::ops
