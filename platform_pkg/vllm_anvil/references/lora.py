# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.lora."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from .precision import compute_dtype


def _runs(order: Tensor, starts: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(adapter, its tokens) of every adapter that has tokens."""
    bounds = starts.tolist()
    for adapter, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin < end:
            yield adapter, order[begin:end].long()


def _check(order: Tensor, starts: Tensor, tokens: int, ranks: Tensor | None, rank: int) -> None:
    bounds = starts.tolist()
    if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > len(order):
        raise IndexError(f"starts {bounds} does not cut {len(order)} tokens")
    listed = order[bounds[0] : bounds[-1]]
    if bool(((listed < 0) | (listed >= tokens)).any()):
        raise IndexError(f"order lists a token outside of [0, {tokens})")
    if ranks is not None and bool(((ranks < 0) | (ranks > rank)).any()):
        raise IndexError(f"ranks has one outside of [0, {rank}]")


def lora_shrink(
    input: Tensor,
    a: list[Tensor],
    order: Tensor,
    starts: Tensor,
    shrunk: Tensor,
    scale: float = 1.0,
    ranks: Tensor | None = None,
) -> None:
    rank, dtype = a[0].shape[1], compute_dtype(input)
    _check(order, starts, len(input), ranks, rank)
    for index, weight in enumerate(a):
        for adapter, tokens in _runs(order, starts):
            used = rank if ranks is None else int(ranks[index, adapter])
            result = torch.zeros(len(tokens), rank, dtype=dtype, device=input.device)
            factors = weight[adapter, :used].to(dtype)
            result[:, :used] = scale * (input[tokens].to(dtype) @ factors.T)
            shrunk[index, tokens] = result.to(shrunk.dtype)


def lora_expand(
    shrunk: Tensor,
    b: list[Tensor],
    order: Tensor,
    starts: Tensor,
    output: Tensor,
    offset: int = 0,
    add: bool = True,
    ranks: Tensor | None = None,
) -> None:
    rank, dtype = b[0].shape[2], compute_dtype(output)
    _check(order, starts, len(output), ranks, rank)
    for index, weight in enumerate(b):
        columns = slice(offset, offset + weight.shape[1])
        offset = columns.stop
        for adapter, tokens in _runs(order, starts):
            used = rank if ranks is None else int(ranks[index, adapter])
            factors = weight[adapter, :, :used].to(dtype)
            result = shrunk[index, tokens, :used].to(dtype) @ factors.T
            if add:
                result += output[tokens, columns]
            output[tokens, columns] = result.to(output.dtype)
