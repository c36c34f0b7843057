// SPDX-License-Identifier: Apache-2.0
// copy_blocks within one cache and swap_blocks between two: the same kernel. All pairs are checked
// before anything is written, so that a bad one leaves the destination as it was.
#include <ATen/MemoryOverlap.h>

#include "aten/host_alias.h"
#include "core/pinned.h"
#include "core/wait.h"
#include "dispatch.h"
#include "ops/checks.h"
#include "ops/launch.h"

namespace anvil::ops {
namespace {

// A cache [num_blocks, ...] whose blocks are one contiguous piece of memory each, in any order of
// the inner dimensions and at any distance.
void check_cache(const Checks& check, const at::Tensor& cache, const char* name) {
  TORCH_CHECK_VALUE(cache.dim() >= 2, check.op(), ": ", name,
                    " must have shape [num_blocks, ...], but has ", cache.sizes());
  if (cache.numel() == 0) return;
  const at::Tensor block = cache.select(0, 0);
  TORCH_CHECK_VALUE(block.is_non_overlapping_and_dense(), check.op(), ": a block of ", name,
                    " must be one piece of memory, but the strides are ", cache.strides(),
                    " for shape ", cache.sizes());
  TORCH_CHECK_VALUE(cache.size(0) == 1 || cache.stride(0) >= block.numel(), check.op(),
                    ": blocks of ", name, " overlap: strides ", cache.strides(), " for shape ",
                    cache.sizes());
}

void check_same_blocks(const Checks& check, const at::Tensor& src, const at::Tensor& dst) {
  TORCH_CHECK_TYPE(src.scalar_type() == dst.scalar_type(), check.op(), ": src is ",
                   src.scalar_type(), " but dst is ", dst.scalar_type());
  bool same = src.dim() == dst.dim();
  for (int64_t d = 1; same && d < src.dim(); ++d) {
    same = src.size(d) == dst.size(d) && (src.size(d) <= 1 || src.stride(d) == dst.stride(d));
  }
  TORCH_CHECK_VALUE(same, check.op(),
                    ": blocks of src and dst must have one shape and layout, but src has shape ",
                    src.sizes(), " and strides ", src.strides(), ", dst ", dst.sizes(), " and ",
                    dst.strides());
}

// Queues the copies. Pairs on the CPU are checked and copied first, since the caller may change
// them; those on the device are looked at when the command runs.
void copy(const Checks& check, c10::Device device, const at::Tensor& src, const at::Tensor& dst,
          const at::Tensor& block_pairs) {
  check.block_pairs(block_pairs, "block_pairs", device);
  const int64_t num_pairs = block_pairs.size(0), src_blocks = src.size(0), dst_blocks = dst.size(0);
  const at::Tensor pairs =
      block_pairs.device().is_cpu() && !device.is_cpu() ? staged(block_pairs) : block_pairs;
  const int64_t element = src.element_size();
  const int64_t block_bytes = src.numel() > 0 ? src.numel() / src_blocks * element : 0;
  const kernels::CopyBlocksArgs args = {
      .source = static_cast<const char*>(src.const_data_ptr()),
      .destination = static_cast<char*>(dst.mutable_data_ptr()),
      .source_stride = src.stride(0) * element,
      .destination_stride = dst.stride(0) * element,
      .block_bytes = block_bytes,
      .block_pairs = pairs.const_data_ptr<int64_t>(),
      .num_pairs = num_pairs,
  };
  const at::Tensor kept = pairs.device().is_cpu() ? pairs : at::Tensor();
  const auto check_blocks = [=] {
    check.in_range(args.block_pairs, num_pairs, 2, 0, src_blocks, "block_pairs[:, 0]", 0,
                   "source blocks");
    check.in_range(args.block_pairs + 1, num_pairs, 2, 0, dst_blocks, "block_pairs[:, 1]", 0,
                   "destination blocks");
  };
  if (kept.defined()) check_blocks();
  const auto kernel = kernels::active_table().copy_blocks;
  launch(check.op(), device, {src, pairs}, {dst}, [=] {
    if (!kept.defined()) check_blocks();
    for_ranges(device, num_pairs > 0 ? block_bytes : 0, grain_of(num_pairs),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  });
  // The host may use its side as soon as the call returns, unless it is pinned.
  for (const at::Tensor& side : {src, dst}) {
    if (device.is_cpu() || !side.device().is_cpu()) continue;
    anvilStream_t stream = current_stream_handle(device.index());
    if (!keep_pinned_until_now(side.const_data_ptr(), stream)) {
      wait_for_host_use(device.index(), check.op());
    }
  }
}

void copy_blocks(at::Tensor& cache, const at::Tensor& block_pairs) {
  constexpr Checks check("anvil::copy_blocks");
  check_cache(check, cache, "cache");
  copy(check, cache.device(), cache, cache, block_pairs);
}

void swap_blocks(const at::Tensor& src, at::Tensor& dst, const at::Tensor& block_pairs) {
  constexpr Checks check("anvil::swap_blocks");
  check_cache(check, src, "src");
  check_cache(check, dst, "dst");
  check_same_blocks(check, src, dst);
  TORCH_CHECK_VALUE(
      at::get_overlap_status(src, dst) != at::MemOverlapStatus::Partial, check.op(),
      ": src and dst share a part of their memory; give the same tensor or two disjoint ones");
  const c10::Device device = dst.device().is_cpu() ? src.device() : dst.device();
  if (!src.device().is_cpu()) check.device(src, "src", device);
  copy(check, device, src, dst, block_pairs);
}

ANVIL_OPS(m) {
  m.impl("copy_blocks", &copy_blocks);
  m.impl("swap_blocks", &swap_blocks);
}

}  // namespace
}  // namespace anvil::ops
