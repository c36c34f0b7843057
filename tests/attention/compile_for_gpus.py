# SPDX-License-Identifier: Apache-2.0
"""Compiles the Triton attention for GPUs, without one, and prints what came out, as JSON.

A program of its own: it needs no driver, and Triton's choice of one is the whole process's.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_geometries import COMPILATIONS, E4M3, E5M2

from anvil_attention import triton_tiles
from anvil_attention.triton_paged_kernel import paged_attention_kernel

POINTEES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    E4M3: "fp8e4nv",
    E5M2: "fp8e5",
    torch.int8: "i8",
}
TABLES = ("block_table", "query_start_loc", "seq_lens")


def type_of(name: str, constants: dict[str, Any], dtype: torch.dtype, kv: torch.dtype) -> str:
    """An argument's type as Triton finds it at a launch."""
    if name in constants:
        return "constexpr"
    if name in ("query", "output"):
        return "*" + POINTEES[dtype]
    if name in ("key_cache", "value_cache"):
        return "*" + POINTEES[kv]
    if name in TABLES:
        return "*i32"
    if name == "causal_per_request":
        return "*i8"
    if name in ("alibi_slopes", "sinks"):
        return "*fp32"
    if name in ("scale", "soft_cap", "v_scale"):
        return "fp32"
    # A cache has more than 2**31 elements, so its blocks may be that far apart.
    return "i64" if name.endswith("block_stride") else "i32"


def compile_for(
    capability: int, constants: dict[str, Any], dtype: torch.dtype, kv: torch.dtype
) -> Any:
    """The kernel with aligned memory and strides, as caches have them."""
    kernel = paged_attention_kernel
    signature = {name: type_of(name, constants, dtype, kv) for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name.endswith("_stride")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = triton_tiles.TILES["cuda"].options
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main() -> None:
    for one in COMPILATIONS:
        constants = triton_tiles.constants(
            "cuda",
            one.group,
            *one.sizes,
            16,
            one.dtype,
            decode=one.decode,
            per_request=one.everything,
            has_soft_cap=one.everything,
            has_alibi=one.everything,
            has_sinks=one.everything,
        )
        compiled = compile_for(one.capability, constants, one.dtype, one.kv_dtype)
        report = {
            "name": str(one),
            "shared": compiled.metadata.shared,
            "machine_code": len(compiled.asm["cubin"]),
            "tensor_cores": "mma" in compiled.asm["ptx"],
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
