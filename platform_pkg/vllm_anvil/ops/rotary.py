# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding, by itself and with what comes before and after it."""

from collections.abc import Sequence

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


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


def qk_norm_rotary_write_kv_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float | None = None,
    weight_offset: float = 0.0,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    """All that happens between a layer's projection and its attention, in one pass: RMS norm of
    each head of queries and keys, rotary embedding, and keys and values into the paged cache.

    Bit for bit what :func:`~vllm_anvil.ops.norm.rms_norm` of the heads, :func:`rotary_embedding`,
    a conversion to the cache's dtypes and :func:`~vllm_anvil.ops.cache.write_kv_cache` leave, one
    after the other: what is normed is rounded to its dtype before it is turned, and what is turned
    before it is converted.

    Args:
        positions: as for :func:`rotary_embedding`; one for each of ``num_tokens`` tokens, or three.
        query: ``[num_tokens, num_heads * head_size]`` or ``[num_tokens, num_heads, head_size]``,
            float32, bfloat16 or float16, any strides with the last dimension contiguous,
            **written**.
        key: like ``query``, with its own number of heads and dtype, **written**.
        value: ``[>= num_slots, num_kv_heads * value_head_size]`` or the same in three dimensions.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_size]`` float32, bfloat16 or
            float16, any strides with the last dimension contiguous, **written**. Its dtype may
            differ from the key's.
        value_cache: ``[num_blocks, block_size, num_kv_heads, value_head_size]``, likewise. What is
            written shares no memory with any other argument; parts of a fused projection do not.
        slot_mapping: ``[num_slots <= num_tokens]`` int64, contiguous. Tokens with a negative slot,
            and those beyond it, are normed and turned but not written to the cache. Slots are
            distinct; of two tokens with one slot either may win.
        cos_sin_cache: as for :func:`rotary_embedding`; likewise ``is_neox``, ``mrope_section`` and
            ``mrope_interleaved``.
        query_weight: ``[head_size]`` of any of these dtypes, or None: queries are not weighed.
        key_weight: likewise for keys.
        epsilon: added to the mean square of a head; None: nothing is normed.
        weight_offset: added to both weights.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, a weight has no ``epsilon``, devices differ, or
            what is written shares memory.
        IndexError: a position is outside of ``cos_sin_cache``, or a slot outside of the cache;
            nothing is written.
    """
    torch.ops.anvil.qk_norm_rotary_write_kv_cache(
        positions,
        query,
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        cos_sin_cache,
        is_neox,
        query_weight,
        key_weight,
        epsilon,
        weight_offset,
        mrope_section,
        mrope_interleaved,
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


@torch.library.register_fake("anvil::qk_norm_rotary_write_kv_cache")
def _(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float | None = None,
    weight_offset: float = 0.0,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> None:
    return None
