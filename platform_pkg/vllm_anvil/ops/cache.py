# SPDX-License-Identifier: Apache-2.0
"""Ops on the paged KV cache.

A cache is made of ``num_blocks`` blocks of ``block_size`` tokens. A *slot* is a token's place in
it: ``block * block_size + offset``. A request's *block table* row lists its blocks in the order
of its positions.
"""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def write_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Writes each token's key and value into its slot of the cache.

    Where a cache has its source's type and the scale is 1, elements are copied as they are.
    Otherwise they are numbers: each is divided by the scale in float32 and rounded to the cache's
    type, to the nearest, ties to even. What is beyond the largest number of float8 or int8,
    infinity included, becomes that number with its sign; NaN becomes 0 in int8, which has none.

    Args:
        key: ``[>= num_tokens, num_kv_heads, head_size]``, any strides with the last dimension
            contiguous; float32, bfloat16 or float16. To be copied, any type whose elements have 1,
            2 or 4 bytes.
        value: like ``key``; its head size may differ.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_size]``, any strides with the last
            dimension contiguous, **written**; float32, bfloat16, float16, float8_e4m3fn,
            float8_e5m2 or int8, or ``key``'s type. Shares no memory with any other argument.
        value_cache: the same for ``value``.
        slot_mapping: ``[num_tokens]`` int64, contiguous. Tokens with a negative slot are skipped.
            Slots are distinct; of two tokens with one slot either may win.
        k_scale: what numbers in ``key_cache`` are multiplied by when they are read; positive.
        v_scale: the same for ``value_cache``.

    Raises:
        TypeError: a type can be neither copied nor converted.
        ValueError: a shape, layout, device or scale that makes no sense.
        IndexError: a slot is not below ``num_blocks * block_size``; both caches are unchanged.
    """
    torch.ops.anvil.write_kv_cache(
        key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale
    )


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


def check_block_table(
    block_table: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_size: int, num_blocks: int
) -> None:
    """Refuses a batch one of whose requests would read outside of the cache.

    On the device this is a command like the others, in stream order: the error is reported by the
    next wait, and by itself keeps no later command from running.

    Requests without query rows are padding, and nothing of theirs is looked at. Likewise rows
    of a table beyond the requests that the other arguments speak of.

    Args:
        block_table: ``[>= num_requests, max_blocks]`` int32, rows contiguous and at any distance.
        query_start_loc: ``[num_requests + 1]`` int32, contiguous: where each request's query rows
            begin, and the end of the last one's.
        seq_lens: ``[num_requests]`` int32, contiguous: tokens of each request in the cache; they
            use the first ``ceil(seq_len / block_size)`` entries of its row.
        block_size: tokens of a block.
        num_blocks: blocks of the cache.

    Raises:
        TypeError: a dtype is another one.
        ValueError: a shape or layout is another one, devices differ, or a number makes no sense.
        IndexError: an entry in use is no block of the cache, or a request is longer than its row.
    """
    torch.ops.anvil.check_block_table(
        block_table, query_start_loc, seq_lens, block_size, num_blocks
    )


# All of these return nothing, which leaves tracing nothing to compute.


@torch.library.register_fake("anvil::write_kv_cache")
def _(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    return None


@torch.library.register_fake("anvil::copy_blocks")
def _(cache: Tensor, block_pairs: Tensor) -> None:
    return None


@torch.library.register_fake("anvil::swap_blocks")
def _(src: Tensor, dst: Tensor, block_pairs: Tensor) -> None:
    return None


@torch.library.register_fake("anvil::check_block_table")
def _(
    block_table: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_size: int, num_blocks: int
) -> None:
    return None
