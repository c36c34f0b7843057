# SPDX-License-Identifier: Apache-2.0
"""Random attention calls, built so that a mistake shows.

Everything that a call must not read is NaN (in int8 the least number): rows of padding, parts of
the fused projection that are not the query, blocks of the cache that no request has, and tokens
beyond a request's length or out of every query's window. Blocks are handed out in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import AttentionCall, AttentionSpec

# Bytes of what must not be read: as a float of any width, float8 included, they are a NaN.
POISON = 0xFF
# The same for int8, which has no NaN: the number that is furthest from all others.
POISON_INT8 = 0x80
# What one step of an int8 cache means: its numbers reach four deviations.
INT8_STEP = 2.0**-5
# Orders of the cache's dimensions in memory as the engine names them: Layers, Blocks, Heads,
# tokens of a block (N), Content (a key and its value).
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
# Keys and values in memory of their own with different strides, as an encoder has them.
APART = "apart"


@dataclass(frozen=True)
class Request:
    """One request of a batch: its `query_len` newest of `seq_len` tokens are computed."""

    query_len: int
    seq_len: int


def first_visible(spec: AttentionSpec, request: Request) -> int:
    """The first key that any of a request's queries sees."""
    if spec.sliding_window is None:
        return 0
    return max(0, request.seq_len - request.query_len - spec.sliding_window + 1)


def make_call(
    spec: AttentionSpec,
    requests: Sequence[Request],
    *,
    seed: int,
    layout: str = "LBHNC",
    padding: int = 0,
    causal: bool | Sequence[bool] = True,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> AttentionCall:
    """A call with normally distributed data, on the CPU, the same for the same arguments.

    Args:
        spec: of the layer.
        requests: of the batch, at least one.
        seed: of all random numbers.
        layout: one of `LAYOUTS`, or `APART`. Where layers are not outermost, the cache holds two of
            them.
        padding: rows of query and output beyond the last request's; above 0, the batch also gets
            a request without rows.
        causal: as in `AttentionCall`; a sequence becomes a tensor. A request that is not causal may
            have more query tokens than keys: attention to an encoder.
        k_scale, v_scale: as in `AttentionCall`; of a cache of int8 they are multiplied by
            `INT8_STEP`.

    Raises:
        ValueError: no request, a length that cannot be, or an unknown layout.
    """
    if not requests:
        raise ValueError("a batch must have at least one request")
    if layout not in (*LAYOUTS, APART):
        raise ValueError(f"there is no cache layout {layout!r}: choose {', '.join(LAYOUTS)}")
    generator = torch.Generator().manual_seed(seed)
    flags = (
        causal
        if isinstance(causal, bool)
        else torch.tensor([*causal, *[True] * bool(padding)], dtype=torch.bool)
    )
    _check_lengths(requests, [causal] * len(requests) if isinstance(causal, bool) else causal)
    requests = [*requests, Request(0, 0)] if padding else list(requests)
    block_table, blocks = _block_table(spec, requests, generator)
    keys, values = _empty_cache(spec, blocks, layout)
    for request, table in zip(requests, block_table, strict=True):
        _fill(spec, request, table, keys, values, generator)

    lens = torch.tensor([r.query_len for r in requests], dtype=torch.int32)
    starts = torch.zeros(len(requests) + 1, dtype=torch.int32)
    starts[1:] = lens.cumsum(0)
    tokens = int(starts[-1])
    query = _query(spec, tokens, padding, generator)
    step = INT8_STEP if spec.kv_dtype == torch.int8 else 1.0
    heads = spec.num_heads
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float32) / heads)
    sinks = torch.randn(heads, generator=generator).to(spec.dtype)
    return AttentionCall(
        spec=spec,
        query=query,
        key_cache=keys,
        value_cache=values,
        block_table=block_table,
        query_start_loc=starts,
        seq_lens=torch.tensor([r.seq_len for r in requests], dtype=torch.int32),
        output=torch.empty(tokens + padding, heads, spec.value_head_size, dtype=spec.dtype),
        max_query_len=max(r.query_len for r in requests),
        max_seq_len=max(r.seq_len for r in requests),
        causal=flags,
        alibi_slopes=slopes if spec.has_alibi else None,
        sinks=sinks if spec.has_sinks else None,
        k_scale=k_scale * step,
        v_scale=v_scale * step,
    )


def poisoned(count: int, dtype: torch.dtype) -> Tensor:
    """[count] elements that must not be read."""
    byte = POISON_INT8 if dtype == torch.int8 else POISON
    return torch.full((count * dtype.itemsize,), byte, dtype=torch.uint8).view(dtype)


def _check_lengths(requests: Sequence[Request], causal: Sequence[bool]) -> None:
    for request, flag in zip(requests, causal, strict=True):
        most = request.seq_len if flag else request.query_len
        if request.seq_len < 0 or not 0 <= request.query_len <= most:
            raise ValueError(
                f"a request cannot have {request.query_len} query tokens in a sequence of "
                f"{request.seq_len}"
            )


def _block_table(
    spec: AttentionSpec, requests: Sequence[Request], generator: torch.Generator
) -> tuple[Tensor, int]:
    """The table, and the number of blocks of the cache.

    Block 0 is nobody's: the engine puts it where a request's blocks have slid out of its window.
    """
    spans = []
    for request in requests:
        size = spec.block_size
        spans.append((first_visible(spec, request) // size, -(-request.seq_len // size)))
    used = sum(last - first for first, last in spans)
    spare = 4 + used // 8
    ids = torch.randperm(used + spare, generator=generator).to(torch.int32) + 1
    # Entries beyond a request's length lead to a block that is poisoned.
    width = max(last for _, last in spans) + 3
    table = torch.full((len(requests), width), int(ids[-1]), dtype=torch.int32)
    taken = 0
    for row, (first, last) in zip(table, spans, strict=True):
        row[:first] = 0
        row[first:last] = ids[taken : taken + last - first]
        taken += last - first
    return table, used + spare + 1


def _empty_cache(spec: AttentionSpec, num_blocks: int, layout: str) -> tuple[Tensor, Tensor]:
    """Key and value views of a poisoned cache."""
    if layout == APART:
        tokens = (num_blocks, spec.block_size, spec.num_kv_heads)
        keys = poisoned(math.prod(tokens) * spec.head_size, spec.kv_dtype)
        # A part of each token's fused projection.
        width = spec.head_size + spec.value_head_size
        fused = poisoned(math.prod(tokens) * width, spec.kv_dtype).view(*tokens, width)
        return keys.view(*tokens, spec.head_size), fused[..., spec.head_size :]
    sizes = {
        "L": 1 if layout[0] == "L" else 2,
        "B": num_blocks,
        "H": spec.num_kv_heads,
        "N": spec.block_size,
        "C": spec.head_size + spec.value_head_size,
    }
    shape = torch.Size(sizes[dimension] for dimension in layout)
    whole = poisoned(shape.numel(), spec.kv_dtype).view(shape)
    layer = whole.permute([layout.index(dimension) for dimension in "LBNHC"])[-1]
    return layer[..., : spec.head_size], layer[..., spec.head_size :]


def _fill(
    spec: AttentionSpec,
    request: Request,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    generator: torch.Generator,
) -> None:
    position = torch.arange(first_visible(spec, request), request.seq_len)
    place = (table[position // spec.block_size].long(), position % spec.block_size)
    # Elements of one byte have no normal random numbers of their own.
    wide = torch.float32 if spec.kv_dtype.itemsize == 1 else spec.kv_dtype
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[spec.kv_dtype.itemsize]
    for cache in (keys, values):
        rows = torch.randn((len(position), *cache.shape[2:]), generator=generator, dtype=wide)
        if spec.kv_dtype == torch.int8:
            rows = (rows / INT8_STEP).round_().clamp_(-128, 127)
        cache.view(bits).index_put_(place, rows.to(spec.kv_dtype).view(bits))


def _query(spec: AttentionSpec, tokens: int, padding: int, generator: torch.Generator) -> Tensor:
    """[tokens + padding, num_heads, head_size], the first part of a fused projection's rows."""
    width = spec.num_heads * spec.head_size
    fused = width + spec.num_kv_heads * (spec.head_size + spec.value_head_size)
    rows = poisoned((tokens + padding) * fused, spec.dtype).view(tokens + padding, fused)
    query = rows[:, :width]
    query[:tokens] = torch.randn((tokens, width), generator=generator, dtype=spec.dtype)
    return query.view(tokens + padding, spec.num_heads, spec.head_size)
