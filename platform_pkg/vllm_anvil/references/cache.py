# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.cache: slow, and written from the definition."""

from torch import Tensor


def write_kv_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            key_cache[block, offset] = key[token]
            value_cache[block, offset] = value[token]


def copy_blocks(cache: Tensor, block_pairs: Tensor) -> None:
    swap_blocks(cache, cache, block_pairs)


def swap_blocks(src: Tensor, dst: Tensor, block_pairs: Tensor) -> None:
    for source, destination in block_pairs.tolist():
        dst[destination] = src[source].to(dst.device)


def check_block_table(
    block_table: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_size: int, num_blocks: int
) -> None:
    starts, lens = query_start_loc.tolist(), seq_lens.tolist()
    for request, (table, length) in enumerate(zip(block_table.tolist(), lens, strict=False)):
        if request + 1 >= len(starts) or starts[request] == starts[request + 1]:
            continue
        used = -(-length // block_size)
        if length < 0 or used > len(table):
            raise IndexError(
                f"anvil::check_block_table: seq_lens[{request}] is {length}, but a row of "
                f"block_table holds {len(table)} blocks of {block_size}"
            )
        for index, block in enumerate(table[:used]):
            if not 0 <= block < num_blocks:
                raise IndexError(
                    f"anvil::check_block_table: block_table[{request}, {index}] is {block}, but "
                    f"the cache has blocks 0 to {num_blocks - 1}"
                )
