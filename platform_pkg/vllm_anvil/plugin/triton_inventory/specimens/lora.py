# SPDX-License-Identifier: Apache-2.0
"""LoRA: shrinking and expanding, also through the experts of a mixture."""

from __future__ import annotations

from typing import Any

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, arguments

_OPS = "lora.ops.triton_ops."
# One slice's pointer, or a table of the slices' pointers.
_ONE: dict[str, Any] = arguments({"*bf16": "lora_ptr"}, SLICE_NUM=1, SAME_STRIDE=True)
_SEVERAL: dict[str, Any] = arguments({"*u64": "lora_ptr"}, SLICE_NUM=3, SAME_STRIDE=True)
# Strides and widths, as numbers where all slices have the same.
_EXPAND = arguments(
    {"i32": "ls_d0_ptr ls_d1_ptr output_hs_ptr"}, ls_d2_ptr=1, ADD_INPUTS=True, CAST_TYPE=False
)
_STRIDES = arguments({"*i64": "ls_d0_ptr ls_d1_ptr ls_d2_ptr output_hs_ptr"}, SAME_STRIDE=False)
_FP8 = arguments(
    {"*fp8e4nv": "input_ptr", "*u64": "b_scale_ptr"},
    use_fp8_w8a8=True,
    per_channel_quant=True,
    group_n=0,
    group_k=0,
)

AREA = Area(
    name="lora",
    modules=("lora",),
    arguments=(
        (r"token_indices_sorted_by_lora_ids|num_tokens_per_lora|lora_token_start_loc", "*i32"),
        (r"lora_ids(_ptr)?|adapter_enabled(_ptr)?|sorted_token_ids_ptr|expert_ids_ptr", "*i32"),
        (r"slice_start_loc|A_ptrs|B_ptrs", "*u64"),
        (r"topk_weights_ptr", "*fp32"),
        (r"scaling", "fp32"),
        (r"a_desc|b_desc", None),
        (r"num_slice_[ac]|NUM_SLICES", 2),
        (r"group_[nk]", 0),
        (r"GROUP_SIZE_M", 8),
        (r"actual_rank|BLOCK_R", 16),
    ),
    kernels={
        f"{_OPS}lora_shrink_op:_lora_shrink_kernel": (
            _ONE | arguments({"*fp32": "out_ptr"}, SPLIT_K=8),
            _SEVERAL | arguments({"*fp32": "out_ptr"}, SPLIT_K=1),
        ),
        f"{_OPS}lora_shrink_fp8_op:_lora_shrink_kernel_fp8": _SEVERAL
        | _FP8
        | arguments({"*fp32": "out_ptr"}, EVEN_K=True),
        f"{_OPS}lora_expand_op:_lora_expand_kernel": (
            _ONE | _EXPAND | arguments(slice_start_loc=0),
            _SEVERAL | _EXPAND,
            _SEVERAL | _EXPAND | _STRIDES,
        ),
        f"{_OPS}lora_expand_fp8_op:_lora_expand_kernel_fp8": _SEVERAL | _EXPAND | _FP8,
        f"{_OPS}fused_moe_lora_op:_fused_moe_lora_kernel": arguments({"*u64": "b_ptr"}),
        f"{_OPS}fused_moe_lora_fp8_op:_fused_moe_lora_kernel_fp8": arguments(
            {"*bf16": "a_ptr", "*u64": "b_ptr b_scale_ptr"},
            use_fp8_w8a8=True,
            per_channel_quant=True,
        ),
    },
)
