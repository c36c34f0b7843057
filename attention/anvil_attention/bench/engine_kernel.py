# SPDX-License-Identifier: Apache-2.0
"""The engine's own CPU attention as a peer, without importing the engine.

Its kernel reads a cache in a packed form of its own. That cache is filled, by the engine's op, and
the engine's schedule of the step is made before the timing: a step does the latter once for all
layers. On anvil tensors it works on the same memory through CPU tensors.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anvil_attention.contract import (
    AttentionCall,
    AttentionImplementation,
    AttentionSpec,
    Unsupported,
)
from anvil_attention.verification import synchronise

from .gathering import gather_requests

# What the engine's backend says that its kernel takes.
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
BLOCK_SIZE_MULTIPLE = 32
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
KV_DTYPES = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}


def library() -> Path:
    """The engine's library for this processor.

    Raises ImportError where the engine is not installed, or is one without CPU kernels.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ImportError("vLLM is not installed")
    name = "_C"
    if platform.machine() in ("x86_64", "AMD64"):
        if not torch.cpu._is_avx512_supported():
            name = "_C_AVX2"
        elif not torch.cpu._is_avx512_bf16_supported():
            name = "_C_AVX512"
    for folder in found.submodule_search_locations:
        for path in sorted(Path(folder).glob(f"{name}.*so")):
            return path
    raise ImportError(f"the installed vLLM has no library {name}: it is not built for CPUs")


@functools.cache
def load() -> None:
    """Loads the engine's kernels. Raises ImportError where they are not there."""
    torch.ops.load_library(library())
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        raise ImportError("the installed vLLM is not built for CPUs: it has no CPU attention")


def instruction_set(spec: AttentionSpec) -> str:
    """The engine's name for the kernel that it would choose."""
    if spec.head_size % 32:
        return "vec16"
    if torch.cpu._is_amx_tile_supported() and spec.dtype == torch.bfloat16:
        return "amx"
    machine = platform.machine()
    others = {"aarch64": "neon", "arm64": "neon", "s390x": "vxe", "ppc64le": "vsx"}
    return others.get(machine, "vec")


def prepare(call: AttentionCall) -> Callable[[], None]:
    """Packs the cache of `call` and schedules its step; returns what computes it."""
    load()
    ops = torch.ops._C
    spec = call.spec
    host: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    if call.query.device.type != "cpu":
        synchronise(call.query.device)
        host = getattr(torch, call.query.device.type).host_alias
    isa = instruction_set(spec)
    kv_dtype = KV_DTYPES.get(spec.kv_dtype, "auto")
    num_blocks, block_size = call.key_cache.shape[:2]
    packed = torch.zeros(
        (num_blocks, spec.num_kv_heads, 2 * block_size, spec.head_size),
        dtype=torch.uint8 if kv_dtype != "auto" else spec.kv_dtype,
    )
    keys, values = packed.chunk(2, dim=2)
    for request in gather_requests(call):
        ops.cpu_attn_reshape_and_cache(
            request.key.cpu(),
            request.value.cpu(),
            keys,
            values,
            request.slots.cpu(),
            isa,
            call.k_scale,
            call.v_scale,
            kv_dtype,
        )
    starts, lens, table = (host(t) for t in (call.query_start_loc, call.seq_lens, call.block_table))
    flags = host(call.causal) if isinstance(call.causal, Tensor) else None
    causal = call.causal if isinstance(call.causal, bool) else False
    window = -1 if spec.sliding_window is None else spec.sliding_window
    schedule = ops.get_scheduler_metadata(
        len(lens),
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_size,
        lens,
        spec.dtype,
        starts,
        causal,
        window,
        isa,
        True,
        flags,
        kv_dtype,
    )
    rows = int(starts[-1])
    query, output = host(call.query)[:rows], host(call.output)[:rows]
    slopes = None if call.alibi_slopes is None else host(call.alibi_slopes)
    sinks = None if call.sinks is None else host(call.sinks)
    if sinks is not None and sinks.dtype not in (torch.bfloat16, torch.float32):
        sinks = sinks.float()
    cap = spec.logits_soft_cap or 0.0
    # The kernel takes rows of output to follow each other, as the engine's do.
    target = (
        output
        if output.is_contiguous()
        else torch.empty_like(output, memory_format=torch.contiguous_format)
    )

    def run() -> None:
        ops.cpu_attention_with_kv_cache(
            query,
            keys,
            values,
            target,
            starts,
            lens,
            spec.scale,
            causal,
            slopes,
            window,
            table,
            cap,
            schedule,
            sinks,
            flags,
            call.k_scale,
            call.v_scale,
            kv_dtype,
        )
        if target is not output:
            output.copy_(target)

    return run


def _refuses(spec: AttentionSpec) -> str | None:
    if spec.device not in ("cpu", "anvil"):
        return f"the engine's CPU kernel does not run on {spec.device}"
    if spec.head_size not in HEAD_SIZES or spec.value_head_size != spec.head_size:
        sizes = f"{spec.head_size}/{spec.value_head_size}"
        return f"the engine's CPU kernel has no head size {sizes}, only {HEAD_SIZES}"
    if spec.block_size % BLOCK_SIZE_MULTIPLE:
        return (
            f"the engine's CPU kernel takes blocks of a multiple of {BLOCK_SIZE_MULTIPLE} tokens, "
            f"not {spec.block_size}"
        )
    if spec.dtype not in DTYPES:
        return f"the engine's CPU kernel does not compute in {spec.dtype}"
    if spec.kv_dtype != spec.dtype and spec.kv_dtype not in KV_DTYPES:
        return f"the engine's CPU kernel has no cache of {spec.kv_dtype} for {spec.dtype}"
    if spec.kv_dtype in KV_DTYPES and (spec.head_size % 32 or not torch.cpu._is_avx512_supported()):
        return "the engine's CPU kernel reads float8 with AVX-512 and head sizes of 32s alone"
    return None


def _unprepared(**arguments: Any) -> None:
    raise Unsupported("the engine's CPU kernel reads a cache of its own form: it is only measured")


engine_attention = AttentionImplementation(
    name="engine", function=_unprepared, refuses=_refuses, prepare=prepare
)
