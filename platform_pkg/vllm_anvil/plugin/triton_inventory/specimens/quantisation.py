# SPDX-License-Identifier: Apache-2.0
"""Quantised weights and activations: linear layers, packing, scales."""

from __future__ import annotations

from vllm_anvil.plugin.triton_inventory.specimens.area import Area, Dtype, arguments

_KERNELS = "model_executor.kernels.linear."
_LAYERS = "model_executor.layers.quantization."
_MXFP8 = arguments({"*fp8e4nv": "x_ptr w_ptr", "*u8": "xs_ptr ws_ptr"})

AREA = Area(
    name="quantisation",
    modules=("model_executor.layers.quantization", "model_executor.kernels.linear"),
    arguments=(
        (r"y_q_ptr|xq_ptr|output_q_ptr", "*fp8e4nv"),
        (r"As|Bs", "*fp32"),
        (r"group_[nk]", 128),
        (r"qweight_ptr|zeros_ptr|zp_ptr", "*i32"),
        (r"scales_ptr", "*bf16"),
        (r"ACCUMULATOR_DTYPE", Dtype("float32")),
        (r"ZP_BIAS", 8),
        (r"SPLIT_K|FUSED_SPLITS", 1),
    ),
    kernels={
        f"{_KERNELS}mixed_precision.rdna_hybrid_w4a16:_triton_w4a16_skinny_fmt_kernel": arguments(
            {"*i32": "b_ptr zp_ptr"}
        ),
        f"{_KERNELS}mixed_precision.triton_w4a16:triton_w4a16_gemm_kernel": arguments(
            {"*i32": "b_ptr"}
        ),
        f"{_KERNELS}mxfp8.rocm_block32_gemm:_block32_packed_kernel": _MXFP8,
        f"{_KERNELS}mxfp8.rocm_block32_gemm:_block32_tiled_kernel": _MXFP8,
        f"{_KERNELS}mxfp8.rocm_native:_mxfp8_linear_kernel": _MXFP8,
        f"{_LAYERS}awq_triton:awq_gemm_kernel": arguments(
            {"*i32": "b_ptr", "*fp16": "a_ptr c_ptr scales_ptr"}, SPLIT_K=8
        ),
        f"{_LAYERS}utils.fp8_utils:_w8a8_triton_block_scaled_mm": arguments({"*fp8e4nv": "A B"}),
        f"{_LAYERS}utils.int8_utils:_per_token_quant_int8": arguments({"*i8": "xq_ptr"}),
        f"{_LAYERS}utils.int8_utils:_per_token_group_quant_int8": arguments(
            {"*i8": "y_q_ptr", "fp32": "int8_min int8_max"}
        ),
        f"{_LAYERS}utils.mxfp8_utils:_mxfp8_quant_triton_kernel.<locals>._kernel": arguments(
            {"*u8": "s_ptr"}, TINY=1e-30
        ),
        f"{_LAYERS}compressed_tensors.triton_scaled_mm:scaled_mm_kernel": arguments(
            {"*fp8e4nv": "a_ptr b_ptr", "*fp32": "scale_a_ptr scale_b_ptr"}
        ),
        f"{_LAYERS}utils.mxfp4_utils:_downcast_to_mxfp": arguments(
            {"*u8": "mx_tensor_ptr mx_scale_ptr", "i32": "stride_mx_scale_outer"},
            stride_mxt_quant=1,
        ),
        f"{_LAYERS}utils.nvfp4_emulation_utils:_dequantize_nvfp4_kernel": arguments(
            {"*u8": "fp4_ptr"}
        ),
    },
)
