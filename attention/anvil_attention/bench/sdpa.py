# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.functional.scaled_dot_product_attention` as a peer.

It knows no paged cache: keys and values are gathered into contiguous tensors before, which is not
timed. Requests of equal lengths that follow each other share one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anvil_attention.contract import (
    AttentionCall,
    AttentionImplementation,
    AttentionSpec,
    Unsupported,
)

from .gathering import Gathered, gather_requests


@dataclass(frozen=True)
class _Group:
    query: Tensor  # [requests, num_heads, query_len, head_size]
    key: Tensor  # [requests, num_kv_heads, keys, head_size]
    value: Tensor
    output: Tensor  # a view of the call's, as the query
    mask: Tensor | None  # [query_len, keys]
    is_causal: bool


def prepare(call: AttentionCall) -> Callable[[], None]:
    """Gathers the keys and values of `call`; returns what computes it."""
    if isinstance(call.causal, Tensor):
        raise Unsupported("torch's SDPA is called with one causality for the batch")
    groups = [
        _group(call, members, call.causal)
        for _, run in itertools.groupby(gather_requests(call), key=lambda r: r.lengths)
        for members in [list(run)]
    ]
    spec = call.spec
    scale = spec.scale
    grouped = spec.num_heads != spec.num_kv_heads

    def run() -> None:
        for group in groups:
            group.output.copy_(
                torch.nn.functional.scaled_dot_product_attention(
                    group.query,
                    group.key,
                    group.value,
                    attn_mask=group.mask,
                    is_causal=group.is_causal,
                    scale=scale,
                    enable_gqa=grouped,
                )
            )

    return run


def _group(call: AttentionCall, members: list[Gathered], causal: bool) -> _Group:
    first, count = members[0], len(members)
    length = first.query_len
    rows = slice(first.first_row, first.first_row + count * length)

    def by_request(tensor: Tensor) -> Tensor:
        return tensor[rows].unflatten(0, (count, length)).transpose(1, 2)

    position = torch.arange(first.seq_len - length, first.seq_len).unsqueeze(1)
    keys = torch.arange(first.first_key, first.seq_len)
    window = call.spec.sliding_window
    hidden = torch.zeros(length, len(keys), dtype=torch.bool)
    if causal:
        hidden |= keys > position
    if window is not None:
        hidden |= (position - keys).abs() >= window
    is_causal = causal and window is None and length == len(keys)
    masked = bool(hidden.any()) and not is_causal
    return _Group(
        query=by_request(call.query),
        key=torch.stack([m.key for m in members]).transpose(1, 2).contiguous(),
        value=torch.stack([m.value for m in members]).transpose(1, 2).contiguous(),
        output=by_request(call.output),
        mask=(~hidden).to(call.query.device) if masked else None,
        is_causal=is_causal,
    )


def _refuses(spec: AttentionSpec) -> str | None:
    for given, what in (
        (spec.logits_soft_cap is not None, "soft caps"),
        (spec.has_sinks, "sinks"),
        (spec.has_alibi, "ALiBi slopes"),
    ):
        if given:
            return f"torch's SDPA has no {what}"
    return None


def _unprepared(**arguments: Any) -> None:
    raise Unsupported("torch's SDPA reads no paged cache: it is only measured, on gathered keys")


sdpa_attention = AttentionImplementation(
    name="sdpa", function=_unprepared, refuses=_refuses, prepare=prepare
)
