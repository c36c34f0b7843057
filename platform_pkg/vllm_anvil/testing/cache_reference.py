# SPDX-License-Identifier: Apache-2.0
"""What the KV-cache ops compute, in plain torch: slow, and written from the definition.

Each function takes the arguments of the op of the same name in :mod:`vllm_anvil.ops.cache`, which
describes them.
"""

import itertools

import torch
from torch import Tensor


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
    virtual_block_size = block_size * cp_world_size
    starts = query_start_loc.tolist()
    for request, (start, stop) in enumerate(itertools.pairwise(starts)):
        if start == stop:
            continue
        position = positions[start:stop]
        block = block_table[request].long()[position // virtual_block_size]
        # Place of each position of a virtual block among those that its rank owns.
        within = torch.arange(virtual_block_size, device=positions.device)
        owned = within // cp_interleave % cp_world_size == cp_rank
        place = owned.long().cumsum(0) - 1
        offset = position % virtual_block_size
        slots = block * block_size + place[offset]
        slot_mapping[start:stop] = torch.where(owned[offset], slots, pad_id)
    slot_mapping[num_tokens:] = pad_id


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
