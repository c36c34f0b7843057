# SPDX-License-Identifier: Apache-2.0
"""Ops on the paged KV cache.

A cache is made of ``num_blocks`` blocks of ``block_size`` tokens. A *slot* is a token's place in
it: ``block * block_size + offset``. A request's *block table* row lists its blocks in the order
of its positions.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def compute_slot_mapping(
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    slot_mapping: Tensor,
    num_tokens: int,
    block_size: int,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
    pad_id: int = -1,
) -> None:
    """Writes the slot of every token of a batch into ``slot_mapping``.

    Args:
        query_start_loc: ``[num_requests + 1]`` int32, contiguous. Request ``r`` owns the tokens
            ``query_start_loc[r]`` to ``query_start_loc[r + 1] - 1``.
        positions: at least ``[num_tokens]`` int64, contiguous: each token's position in its
            request.
        block_table: at least ``[num_requests, blocks_per_request]`` int32, rows contiguous.
        slot_mapping: ``[max_num_tokens]`` int64, contiguous, **written**. Tokens from
            ``num_tokens`` on get ``pad_id``; those below it that belong to no request keep their
            value.
        num_tokens: tokens of the batch without padding.
        block_size: tokens in a block of one rank.
        cp_world_size: context-parallel ranks that share each request. They take turns of
            ``cp_interleave`` consecutive positions, and an entry of the block table then covers
            ``block_size * cp_world_size`` positions, ``block_size`` of them on each rank.
        cp_rank: this rank; tokens of the others get ``pad_id``.
        cp_interleave: must divide ``block_size`` when there is more than one rank.
        pad_id: slot that :func:`write_kv_cache` skips (negative).

    Raises:
        IndexError: a position lies outside its row of the block table, or ``query_start_loc``
            decreases or exceeds ``num_tokens``; ``slot_mapping`` is unchanged.
    """
    torch.ops.anvil.compute_slot_mapping(
        query_start_loc,
        positions,
        block_table,
        slot_mapping,
        num_tokens,
        block_size,
        cp_world_size,
        cp_rank,
        cp_interleave,
        pad_id,
    )


def write_kv_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Copies each token's key and value into its slot of the cache.

    Elements are copied as they are: view both sides as one type (``uint8`` for fp8) where theirs
    differ.

    Args:
        key: ``[>= num_tokens, num_kv_heads, head_size]``, elements of 1, 2 or 4 bytes, any
            strides with the last dimension contiguous.
        value: like ``key``; its head size may differ.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_size]`` of ``key``'s type, any
            strides with the last dimension contiguous, **written**. Shares no memory with any
            other argument.
        value_cache: the same for ``value``.
        slot_mapping: ``[num_tokens]`` int64, contiguous. Tokens with a negative slot are skipped.
            Slots are distinct; of two tokens with one slot either may win.

    Raises:
        IndexError: a slot is not below ``num_blocks * block_size``; both caches are unchanged.
    """
    torch.ops.anvil.write_kv_cache(key, value, key_cache, value_cache, slot_mapping)


def copy_blocks(cache: Tensor, block_pairs: Tensor) -> None:
    """Copies blocks within a cache, pair after pair: a later pair sees what an earlier one wrote.

    Args:
        cache: ``[num_blocks, ...]``, any type, **written**. Each block is one piece of memory,
            whatever the order of its dimensions and the distance between blocks.
        block_pairs: ``[num_pairs, 2]`` int64 (source block, destination block), contiguous, on
            the cache's device or the CPU.

    Raises:
        IndexError: a block number is out of range; the cache is unchanged.
    """
    torch.ops.anvil.copy_blocks(cache, block_pairs)


def swap_blocks(src: Tensor, dst: Tensor, block_pairs: Tensor) -> None:
    """Copies blocks from one cache to another, for example to or from host memory.

    Args:
        src: ``[num_src_blocks, ...]``, as ``cache`` of :func:`copy_blocks`; on the CPU or the
            device.
        dst: ``[num_dst_blocks, ...]``, **written**, with blocks of the same type, shape and
            layout as ``src``'s; on the CPU or the device. The same tensor as ``src`` or disjoint
            from it.
        block_pairs: ``[num_pairs, 2]`` int64 (block of ``src``, block of ``dst``), contiguous, on
            the device or the CPU.

    Raises:
        IndexError: a block number is out of range; ``dst`` is unchanged.
    """
    torch.ops.anvil.swap_blocks(src, dst, block_pairs)


# All four write to arguments and return nothing, which leaves tracing nothing to compute.


@torch.library.register_fake("anvil::compute_slot_mapping")
def _(
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    slot_mapping: Tensor,
    num_tokens: int,
    block_size: int,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
    pad_id: int = -1,
) -> None:
    return None


@torch.library.register_fake("anvil::write_kv_cache")
def _(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    return None


@torch.library.register_fake("anvil::copy_blocks")
def _(cache: Tensor, block_pairs: Tensor) -> None:
    return None


@torch.library.register_fake("anvil::swap_blocks")
def _(src: Tensor, dst: Tensor, block_pairs: Tensor) -> None:
    return None
