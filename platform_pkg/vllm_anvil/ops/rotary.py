# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding."""

from collections.abc import Sequence

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fake below needs the op to exist


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    """Turns pairs of elements of each head by the angles of the token's position, in place.

    A pair ``(x, y)`` becomes ``(x cos - y sin, y cos + x sin)``, in float32 arithmetic that is
    rounded once. The first ``rotary_dim`` elements of a head turn, the others stay as they are.

    Args:
        positions: ``[num_tokens]`` int64 or int32, any stride, below ``max_position``. Or
            ``[3, num_tokens]``: positions in time, height and width, each of which turns a part of
            the pairs (multimodal rotary embedding).
        query: ``[num_tokens, num_heads * head_size]`` or ``[num_tokens, num_heads, head_size]``,
            float32, bfloat16 or float16, any strides with the last dimension contiguous,
            **written**. Shares no memory with any other argument; parts of a fused projection do
            not.
        key: like ``query``, with its own number of heads and dtype, **written**; or None.
        head_size: elements of a head.
        cos_sin_cache: ``[max_position, rotary_dim]`` float32, bfloat16 or float16, rows contiguous:
            the cosines of each position's ``rotary_dim / 2`` angles, then the sines.
            ``rotary_dim`` is even and at most ``head_size``.
        is_neox: pair i is made of elements i and ``rotary_dim / 2 + i`` (GPT-NeoX) instead of 2i
            and 2i + 1 (GPT-J).
        mrope_section: for positions of three rows, how many pairs turn by each; sums to
            ``rotary_dim / 2``. Not looked at for positions of one.
        mrope_interleaved: time, height and width take turns from pair to pair for as long as
            height and width have pairs left, and time has the rest. Otherwise all pairs of time
            come first, then those of height, then those of width.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, ``rotary_dim`` is odd or too large, devices
            differ, or what is written shares memory.
        IndexError: a position is outside of the cache; query and key are unchanged.
    """
    torch.ops.anvil.rotary_embedding(
        positions, query, key, head_size, cos_sin_cache, is_neox, mrope_section, mrope_interleaved
    )


@torch.library.register_fake("anvil::rotary_embedding")
def _(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    return None
