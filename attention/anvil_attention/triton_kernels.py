# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton: one kernel for anvil, for CUDA and for Triton's interpreter.

`triton_attention` obeys the attention contract. It needs nothing on the host but bounds, so a call
may be recorded into a graph. This module imports without Triton, and then refuses every layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .contract import AttentionImplementation, AttentionSpec, GraphSupport, Unsupported
from .triton_tiles import TILES, constants

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# Further than any sequence is long, and half of what an int32 holds.
UNLIMITED = 1 << 30
# Where Triton compiles to, by the type of the tensors' device. Anvil's target is the host's CPU.
TARGETS = {"anvil": ("cpu",), "cpu": ("cpu",), "cuda": ("cuda", "hip"), "xpu": ("xpu",)}


def _launches(
    num_requests: int, max_query_len: int
) -> Iterator[tuple[bool, int, int]]:  # (decode, shortest, longest)
    """Which requests are computed with which tiles.

    A tile for prompts would compute a decode's rows at a multiple of their cost, and only the
    device knows which requests are decodes. So both launches see all requests.
    """
    if max_query_len <= 1:
        yield True, 0, 1
    elif num_requests == 1:
        yield False, 0, UNLIMITED
    else:
        yield True, 0, 1
        yield False, 2, UNLIMITED


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_seq_len: int,
    causal: bool | Tensor = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    workspace: Tensor | None = None,
) -> None:
    """Attention of each request's newest tokens over its keys in the cache.

    Arguments are those of `contract.AttentionCall`: query and output of float16, bfloat16 or
    float32, caches of these, of float8 or int8. Sums and the softmax are float32; products are
    float32 on anvil and the CPU, and of the query's type on a GPU.

    Raises:
        Unsupported: Triton does not compile for the query's device here, or not these dtypes.
        ValueError: the last dimension of a tensor is not contiguous.
    """
    reason = _refusal(query.device.type, query.dtype, key_cache.dtype)
    if reason is not None:
        raise Unsupported(reason)
    for name, tensor in (
        ("query", query),
        ("key_cache", key_cache),
        ("value_cache", value_cache),
        ("block_table", block_table),
        ("output", output),
    ):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"the last dimension of {name} must be contiguous")
    from .triton_paged_kernel import paged_attention_kernel

    num_tokens, num_heads, head_size = query.shape
    block_size, num_kv_heads, value_head_size = value_cache.shape[1:]
    num_requests = seq_lens.shape[0]
    if min(num_tokens, num_requests, num_heads, value_head_size) == 0:
        return
    per_request = isinstance(causal, Tensor)
    if isinstance(causal, Tensor):
        # The interpreter and some devices have no pointers to bool.
        causal_per_request = causal.view(torch.int8) if causal.dtype == torch.bool else causal
    for decode, shortest, longest in _launches(num_requests, max_query_len):
        constexprs = constants(
            query.device.type,
            num_heads // num_kv_heads,
            head_size,
            value_head_size,
            block_size,
            query.dtype,
            decode=decode,
            per_request=per_request,
            has_soft_cap=logits_soft_cap is not None,
            has_alibi=alibi_slopes is not None,
            has_sinks=sinks is not None,
        )
        tokens_of_tile = constexprs["ROWS"] // constexprs["GROUP"]
        grid = (num_tokens // tokens_of_tile + num_requests, num_kv_heads)
        paged_attention_kernel[grid](
            query,
            key_cache,
            value_cache,
            block_table,
            query_start_loc,
            seq_lens,
            output,
            causal_per_request if per_request else seq_lens,  # not read
            seq_lens if alibi_slopes is None else alibi_slopes,
            seq_lens if sinks is None else sinks,
            *query.stride()[:2],
            *key_cache.stride()[:3],
            *value_cache.stride()[:3],
            block_table.stride(0),
            *output.stride()[:2],
            num_requests,
            shortest,
            longest,
            1 if per_request else int(bool(causal)),
            UNLIMITED if sliding_window is None else sliding_window - 1,
            float(scale * k_scale),
            1.0 if logits_soft_cap is None else float(logits_soft_cap),
            float(v_scale),
            **constexprs,
            **TILES[query.device.type].options,
        )


# Devices and dtypes that need not be asked about again. What is refused may be possible later: a
# backend of Triton's can become active.
_taken: set[tuple[str, torch.dtype, torch.dtype]] = set()


def _refusal(device: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> str | None:
    """Why the kernel cannot be launched with tensors of a device and of these dtypes, or None."""
    key = (device, dtype, kv_dtype)
    if key in _taken:
        return None
    reason = _reason_against(*key)
    if reason is None:
        _taken.add(key)
    return reason


def _reason_against(device: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> str | None:
    if device not in TARGETS:
        return f"the Triton attention does not know the device {device!r}"
    if dtype not in DTYPES:
        return f"the Triton attention takes queries of float16, bfloat16 or float32, not {dtype}"
    if kv_dtype not in (*DTYPES, *FLOAT8, torch.int8):
        return f"the Triton attention cannot read a cache of {kv_dtype}"
    try:
        import triton
    except ImportError as error:
        return f"Triton is not installed, or not usable ({error}): pip install triton"
    if triton.knobs.runtime.interpret:
        return _interpreter_refusal(device, kv_dtype)
    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError as error:
        target = None
        found = f"has no driver ({error})"
    else:
        found = f"compiles for {target.backend} in this process"
    if target is None or target.backend not in TARGETS[device]:
        remedy = " (import vllm_anvil.triton before)" if device in ("anvil", "cpu") else ""
        return f"Triton {found}, not for {device} tensors{remedy}"
    if target.backend == "cuda" and kv_dtype == torch.float8_e4m3fn and target.arch < 89:
        return f"GPUs of compute capability {target.arch / 10} do not convert {kv_dtype}"
    return None


def _interpreter_refusal(device: str, kv_dtype: torch.dtype) -> str | None:
    if device != "cpu":
        return f"Triton's interpreter (TRITON_INTERPRET=1) takes cpu tensors here, not {device}"
    if kv_dtype in FLOAT8:
        return f"Triton's interpreter does not convert {kv_dtype}"
    return None


def refuses(spec: AttentionSpec) -> str | None:
    """Why a layer cannot be served, or None: see `contract.AttentionImplementation`."""
    return _refusal(spec.device, spec.dtype, spec.kv_dtype)


triton_attention = AttentionImplementation(
    name="triton",
    function=paged_attention,
    refuses=refuses,
    graph_support=GraphSupport.ALWAYS,
)
