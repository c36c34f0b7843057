# SPDX-License-Identifier: Apache-2.0
"""A paged attention in Triton: one program per query token and KV head.

The query heads that share a KV head are the rows of a small matrix, so that each key is read once
for all of them. What it does not have it refuses, before anything is run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from anvil_attention.contract import AttentionSpec, GraphSupport, Unsupported, attention

KEYS_AT_ONCE = 32


@triton.jit
def _kernel(
    query, key_cache, value_cache, block_table, query_start_loc, seq_lens, output,
    num_requests, scale, window,
    query_row, query_head, key_block, key_token, key_head, value_block, value_token, value_head,
    table_row, output_row, output_head,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    # The request of this row: the last one that begins at it or before, by bisection.
    low, high = 0, num_requests
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_loc + middle) <= row:
            low = middle
        else:
            high = middle - 1
    if low == num_requests:  # a row of padding
        return
    length = tl.load(seq_lens + low)
    position = length - tl.load(query_start_loc + low + 1) + row
    first = tl.maximum(0, position - window + 1)

    heads = kv_head * GROUP + tl.arange(0, HEADS)
    elements = tl.arange(0, PADDED)
    is_query = (tl.arange(0, HEADS) < GROUP)[:, None] & (elements < SIZE)[None, :]
    at = row.to(tl.int64) * query_row + heads[:, None] * query_head + elements[None, :]
    q = tl.load(query + at, mask=is_query, other=0.0).to(tl.float32) * scale

    maximum = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    result = tl.zeros((HEADS, PADDED), tl.float32)
    for begin in range(first // KEYS * KEYS, position + 1, KEYS):
        token = begin + tl.arange(0, KEYS)
        visible = (token >= first) & (token <= position)
        block = tl.load(block_table + low * table_row + token // BLOCK_SIZE, mask=visible, other=0)
        block = block.to(tl.int64)
        offset = token % BLOCK_SIZE
        wanted = visible[:, None] & (elements < SIZE)[None, :]
        key_at = block * key_block + offset * key_token + kv_head * key_head
        k = tl.load(key_cache + key_at[:, None] + elements[None, :], mask=wanted, other=0.0)
        value_at = block * value_block + offset * value_token + kv_head * value_head
        v = tl.load(value_cache + value_at[:, None] + elements[None, :], mask=wanted, other=0.0)

        logits = tl.sum(q[:, None, :] * k.to(tl.float32)[None, :, :], axis=2)
        logits = tl.where(visible[None, :], logits, float("-inf"))
        larger = tl.maximum(maximum, tl.max(logits, axis=1))
        weights = tl.exp(logits - larger[:, None])
        correction = tl.exp(maximum - larger)
        total = total * correction + tl.sum(weights, axis=1)
        added = tl.sum(weights[:, :, None] * v.to(tl.float32)[None, :, :], axis=1)
        result = result * correction[:, None] + added
        maximum = larger

    at = row.to(tl.int64) * output_row + heads[:, None] * output_head + elements[None, :]
    result = result / total[:, None]
    tl.store(output + at, result.to(output.dtype.element_ty), mask=is_query)


def _refuses(spec: AttentionSpec) -> str | None:
    if not spec.causal:
        return "only causal attention"
    if spec.has_alibi or spec.has_sinks or spec.logits_soft_cap is not None:
        return "it has no ALiBi, sinks or soft cap"
    if spec.head_size != spec.value_head_size:
        return "keys and values must have one head size"
    if spec.kv_dtype != spec.dtype:
        return "the cache must have the query's dtype"
    return None


@attention(refuses=_refuses, graph_support=GraphSupport.ALWAYS)
def paged(
    *,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    causal: bool | Tensor,
    sliding_window: int | None,
    **unused: Any,
) -> None:
    """The contract's arguments; those that `_refuses` leaves out are at their defaults."""
    if causal is not True:
        raise Unsupported("only causal attention")
    tokens, num_heads, size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    _kernel[(tokens, num_kv_heads)](
        query, key_cache, value_cache, block_table, query_start_loc, seq_lens, output,
        seq_lens.shape[0], scale, torch.iinfo(torch.int32).max if sliding_window is None
        else sliding_window,
        *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0), *output.stride()[:2],
        BLOCK_SIZE=block_size, GROUP=group, HEADS=triton.next_power_of_2(group), SIZE=size,
        PADDED=triton.next_power_of_2(size), KEYS=KEYS_AT_ONCE,
    )  # fmt: skip
