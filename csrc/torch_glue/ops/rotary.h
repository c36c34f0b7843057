// SPDX-License-Identifier: Apache-2.0
// The arguments that ops with a rotary embedding have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/checks.h"
#include "rotary/rotary_args.h"

namespace anvil::ops {

// Checks [tokens, heads * head_size] or [tokens, heads, head_size], but for how many tokens.
kernels::HeadStates head_states(const Checks& check, const at::Tensor& states, const char* name,
                                int64_t head_size, c10::Device device);

// Checks all arguments against each other, but for what the positions are. `key` may be undefined.
kernels::RotaryArgs rotary_args(const Checks& check, const at::Tensor& positions,
                                const at::Tensor& query, const at::Tensor& key, int64_t head_size,
                                const at::Tensor& cos_sin_cache, bool is_neox,
                                at::IntArrayRef mrope_section, bool mrope_interleaved);

// Checks that all positions are rows of the table. Where the op's tensors live: see launch().
void check_positions(const Checks& check, const kernels::RotaryArgs& args, int64_t tokens,
                     int64_t max_position);

// Bytes of what turns for one token.
int64_t rotary_bytes(const kernels::RotaryArgs& args);

}  // namespace anvil::ops
