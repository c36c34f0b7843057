# SPDX-License-Identifier: Apache-2.0
"""What the KV-cache ops compute, in plain torch: slow, and written from the definition.

Each function takes the arguments of the op of the same name in :mod:`vllm_anvil.ops.cache`, which
describes them.
"""

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
