# SPDX-License-Identifier: Apache-2.0
"""Attentions as users write them, right and wrong, for ANVIL_ATTENTION_IMPL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anvil_attention.contract import AttentionImplementation, AttentionSpec, attention


def right(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scale: float,
    **options: Any,
) -> None:
    """Causal attention, a request at a time."""
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // num_kv_heads
    starts = query_start_loc.tolist()
    for request, length in enumerate(seq_lens.tolist()):
        rows = slice(starts[request], starts[request + 1])
        num_rows = rows.stop - rows.start
        if num_rows == 0:
            continue
        blocks = block_table[request, : -(-length // block_size)].long()
        key, value = (
            cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
            for cache in (key_cache, value_cache)
        )
        logits = torch.einsum("qhd,khd->hqk", query[rows].float() * scale, key)
        position = torch.arange(length, device=query.device)
        hidden = position > position[length - num_rows :, None]
        weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        output[rows] = torch.einsum("hqk,khd->qhd", weights, value).to(output.dtype)


def one_in_a_hundred(output: Tensor, query_start_loc: Tensor, **arguments: Any) -> None:
    right(output=output, query_start_loc=query_start_loc, **arguments)
    output[: int(query_start_loc[-1])] *= 1.01


def next_block(block_table: Tensor, **arguments: Any) -> None:
    right(block_table=block_table.roll(1, dims=1), **arguments)


def returns_its_result(query: Tensor, **arguments: Any) -> Tensor:
    return torch.zeros_like(query)


def does_nothing(**arguments: Any) -> None:
    return None


def wrong_shape(output: Tensor, **arguments: Any) -> None:
    right(output=output, **arguments)
    output.unsqueeze_(0)


def result_elsewhere(output: Tensor, **arguments: Any) -> None:
    result = torch.empty_like(output)
    right(output=result, **arguments)
    output.set_(result)


def wrong_dtype(query: Tensor, key_cache: Tensor, **arguments: Any) -> None:
    torch.matmul(query.double(), key_cache[0, 0, 0])


def ignores_strides(output: Tensor, **arguments: Any) -> None:
    """Takes the output for a contiguous tensor."""
    right(output=output.as_strided(output.shape, torch.empty(output.shape).stride()), **arguments)


def writes_padding(output: Tensor, **arguments: Any) -> None:
    output.zero_()
    right(output=output, **arguments)


def changes_the_cache(key_cache: Tensor, **arguments: Any) -> None:
    right(key_cache=key_cache, **arguments)
    key_cache[0] = 0


def breaks(**arguments: Any) -> None:
    raise KeyError("something inside")


def breaks_on_long_sequences(max_seq_len: int, **arguments: Any) -> None:
    """Right on everything that is tried before serving."""
    if max_seq_len > 60:
        raise KeyError("something inside")
    right(max_seq_len=max_seq_len, **arguments)


def _refuses(spec: AttentionSpec) -> str | None:
    return f"heads of {spec.head_size} are not its business"


refusing = attention(right, name="refusing", refuses=_refuses)
of_another_version = AttentionImplementation("old", right, version=0)
not_a_function = 7


def _one_dtype(spec: AttentionSpec) -> str | None:
    return None if spec.dtype == spec.kv_dtype else "query and cache must have one dtype"


@attention(refuses=_one_dtype, workspace_bytes=lambda spec, tokens, requests: 8 * tokens)
def of_one_dtype(query: Tensor, key_cache: Tensor, workspace: Tensor, **arguments: Any) -> None:
    assert query.dtype == key_cache.dtype
    assert workspace.numel() >= 8 * query.shape[0]
    workspace.fill_(255)
    right(query=query, key_cache=key_cache, **arguments)
