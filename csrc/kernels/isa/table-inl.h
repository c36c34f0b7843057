// SPDX-License-Identifier: Apache-2.0
//
// Assembles every kernel into the table of one instruction set. The including file defines
//   ANVIL_ISA_NAMESPACE  namespace of the set, and by that its name
//   ANVIL_VECTOR_BYTES   register width that vec/ uses: 8, 32 or 64
#pragma once

#if !defined(ANVIL_ISA_NAMESPACE) || !defined(ANVIL_VECTOR_BYTES)
#error "define ANVIL_ISA_NAMESPACE and ANVIL_VECTOR_BYTES before including isa/table-inl.h"
#endif

#include "activation/gate_and_mul-inl.h"
#include "attention/attention-inl.h"
#include "attention_states/merge_attn_states-inl.h"
#include "cache/check_block_table-inl.h"
#include "cache/copy_blocks-inl.h"
#include "cache/find_out_of_range-inl.h"
#include "cache/write_kv_cache-inl.h"
#include "ceiling/ceiling_arithmetic-inl.h"
#include "ceiling/ceiling_read-inl.h"
#include "embedding/embedding-inl.h"
#include "embedding/packed_embedding-inl.h"
#include "experts/choose_experts-inl.h"
#include "experts/expert_rows-inl.h"
#include "gemm/linear-inl.h"
#include "gemm/pack_linear-inl.h"
#include "gemm/packed_linear-inl.h"
#include "kernel_table.h"
#include "lora/lora_expand-inl.h"
#include "lora/lora_shrink-inl.h"
#include "norm/layer_norm-inl.h"
#include "norm/rms_norm-inl.h"
#include "rotary/qk_norm_rotary_write_kv_cache-inl.h"
#include "rotary/rotary_embedding-inl.h"
#include "sampling/topk_topp-inl.h"
#include "softmax/softmax-inl.h"

#define ANVIL_STRING_OF(x) #x
#define ANVIL_NAME_OF(x) ANVIL_STRING_OF(x)

namespace anvil::kernels::ANVIL_ISA_NAMESPACE {

extern const KernelTable table;
constinit const KernelTable table = {
    .isa = ANVIL_NAME_OF(ANVIL_ISA_NAMESPACE),
    .vector_bytes = ANVIL_VECTOR_BYTES,
    .find_out_of_range = find_out_of_range,
    .find_out_of_range_int32 = find_out_of_range_int32,
    .write_kv_cache = write_kv_cache,
    .copy_blocks = copy_blocks,
    .linear = linear,
    .linear_input_bytes = linear_input_bytes,
    .prepare_linear_input = prepare_linear_input,
    .packed_linear = packed_linear,
    .pack_linear = pack_linear,
    .unpack_linear = unpack_linear,
    .choose_experts = choose_experts,
    .expert_row_bytes = expert_row_bytes,
    .gather_expert_rows = gather_expert_rows,
    .expert_product = expert_product,
    .combine_expert_rows = combine_expert_rows,
    .lora_shrink = lora_shrink,
    .lora_expand = lora_expand,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .gate_and_mul = gate_and_mul,
    .softmax = softmax,
    .topk_topp = topk_topp,
    .rotary_embedding = rotary_embedding,
    .qk_norm_rotary_write_kv_cache = qk_norm_rotary_write_kv_cache,
    .embedding = embedding,
    .packed_embedding = packed_embedding,
    .merge_attn_states = merge_attn_states,
    .attention_workspace_bytes = attention_workspace_bytes,
    .attention_plan = attention_plan,
    .attention = attention,
    .check_block_table = check_block_table,
    .ceiling_read = ceiling_read,
    .ceiling_arithmetic = ceiling_arithmetic,
};

}  // namespace anvil::kernels::ANVIL_ISA_NAMESPACE
