# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: every token through the two small products of its own adapter.

With A and B of rank r, an adapter adds ``B (A x)`` to a layer's product with x. Both products take
tokens of many adapters at once. Which token has which is said by two tensors that are read when the
op runs, so that a captured step can be replayed with other adapters: ``order`` lists tokens adapter
by adapter, and those of adapter a are ``order[starts[a] : starts[a + 1]]``, each of them once.
Tokens that are not listed have none.

A layer may be several projections of one input ("slices": queries, keys and values). They share
adapters and rank.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def lora_shrink(
    input: Tensor,
    a: list[Tensor],
    order: Tensor,
    starts: Tensor,
    shrunk: Tensor,
    scale: float = 1.0,
    ranks: Tensor | None = None,
) -> None:
    """``shrunk[slice, token] = scale * (a[slice][adapter of the token] @ input[token])``.

    Sums are float32 and go through the depth in one order: a token's result is the same bits
    whatever the other tokens are.

    Args:
        input: ``[tokens, depth]`` float32, bfloat16 or float16, rows contiguous.
        a: for each slice ``[adapters, rank, depth]``, of one dtype of these, rows contiguous.
        order: ``[n]`` int32, each of ``[0, tokens)``.
        starts: ``[adapters + 1]`` int32, ascending, at most n.
        shrunk: ``[slices, tokens, rank]`` float32, rows contiguous. Written for the tokens that
            have an adapter, left as it is for others.
        scale: a factor.
        ranks: ``[slices, adapters]`` int32, each of ``[0, rank]``: how many of an adapter's rows
            are multiplied; 0 is written for the others. None: all.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, a row is not contiguous, devices differ, or
            ``shrunk`` shares memory with ``input``.
        IndexError: a number of ``order``, ``starts`` or ``ranks`` is out of range.
    """
    torch.ops.anvil.lora_shrink(input, a, order, starts, shrunk, scale, ranks)


@torch.library.register_fake("anvil::lora_shrink")
def _lora_shrink(
    input: Tensor,
    a: list[Tensor],
    order: Tensor,
    starts: Tensor,
    shrunk: Tensor,
    scale: float = 1.0,
    ranks: Tensor | None = None,
) -> None:
    pass


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
    """``output[token, columns of the slice] += b[slice][adapter of the token] @ shrunk[slice,
    token]``.

    The slices' columns lie one behind the other, from ``offset`` on. Sums are float32, begin with
    what is there, go through the ranks in their order and are rounded once.

    Args:
        shrunk: ``[slices, tokens, rank]`` float32, rows contiguous.
        b: for each slice ``[adapters, columns, rank]`` float32, bfloat16 or float16, all of one
            dtype, with the **columns** side by side: the transpose of a contiguous
            ``[adapters, rank, columns]``.
        order, starts: as in `lora_shrink`.
        output: ``[tokens, width]`` float32, bfloat16 or float16, rows contiguous. Tokens without an
            adapter and columns of no slice stay as they are.
        offset: the first column that is written.
        add: whether to what is there, or instead of it.
        ranks: as in `lora_shrink`; elements of ``shrunk`` beyond are not read.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, elements that must be are not side by side,
            devices differ, or ``output`` shares memory with ``shrunk``.
        IndexError: a number of ``order``, ``starts`` or ``ranks`` is out of range.
    """
    torch.ops.anvil.lora_expand(shrunk, b, order, starts, output, offset, add, ranks)


@torch.library.register_fake("anvil::lora_expand")
def _lora_expand(
    shrunk: Tensor,
    b: list[Tensor],
    order: Tensor,
    starts: Tensor,
    output: Tensor,
    offset: int = 0,
    add: bool = True,
    ranks: Tensor | None = None,
) -> None:
    pass
