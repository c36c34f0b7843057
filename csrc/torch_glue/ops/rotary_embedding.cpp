// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "dispatch.h"
#include "ops/launch.h"
#include "ops/rotary.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::rotary_embedding");

void rotary_embedding(const at::Tensor& positions, at::Tensor& query,
                      const std::optional<at::Tensor>& key, int64_t head_size,
                      const at::Tensor& cos_sin_cache, bool is_neox, at::IntArrayRef mrope_section,
                      bool mrope_interleaved) {
  const at::Tensor other = key.value_or(at::Tensor());
  const kernels::RotaryArgs args =
      rotary_args(kCheck, positions, query, other, head_size, cos_sin_cache, is_neox, mrope_section,
                  mrope_interleaved);
  const c10::Device device = query.device();
  const int64_t tokens = positions.size(-1), max_position = cos_sin_cache.size(0);
  const auto kernel = kernels::active_table().rotary_embedding;
  const auto body = [=] {
    // Before anything is written, so that a bad position leaves query and key as they were.
    check_positions(kCheck, args, tokens, max_position);
    for_ranges(device, tokens, grain_of(rotary_bytes(args)),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  };
  if (other.defined()) {
    launch(kCheck.op(), device, {positions, cos_sin_cache}, {query, other}, body);
  } else {
    launch(kCheck.op(), device, {positions, cos_sin_cache}, {query}, body);
  }
}

ANVIL_OPS(m) { m.impl("rotary_embedding", &rotary_embedding); }

}  // namespace
}  // namespace anvil::ops
