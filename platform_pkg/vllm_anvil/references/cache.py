# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.cache, written from the definition.

`write_kv_cache` is what serves on a device without a kernel of its own, every layer of every step:
it asks the device for nothing. The others look at index tensors on the host.
"""

import torch
from torch import Tensor

# Elements are moved as bits: not every device indexes every floating dtype.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# What numbers are converted from, and to.
_SOURCES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_CACHES = (*_SOURCES, *_FLOAT8, torch.int8)


def write_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    for name, source, cache, scale in (
        ("key", key, key_cache, k_scale),
        ("value", value, value_cache, v_scale),
    ):
        _check_conversion(name, source.dtype, cache.dtype, scale)
    key, value = _stored(key, key_cache.dtype, k_scale), _stored(value, value_cache.dtype, v_scale)
    num_slots = key_cache.shape[0] * key_cache.shape[1]
    if slot_mapping.device.type == "cpu":
        _check_slots(slot_mapping, num_slots)
    # Elsewhere a slot past the end is left to the check of index_put_ on the device itself: asking
    # for it here would wait for the device.
    if slot_mapping.numel() == 0 or num_slots == 0:
        return
    # A token without a slot writes what the first token with one writes, to the same place: the
    # number of writes is then known without looking at the slots. Where no token has a slot, all
    # write to slot 0 what it holds.
    valid = slot_mapping >= 0
    first = valid.to(torch.uint8).argmax()
    tokens = torch.where(valid, torch.arange(len(slot_mapping), device=valid.device), first)
    slots = slot_mapping[tokens].clamp(min=0)
    some = valid.any()
    index = (slots // key_cache.shape[1], slots % key_cache.shape[1])
    for source, cache in ((key, key_cache), (value, value_cache)):
        bits = _BITS[cache.element_size()]
        target = cache.view(bits)
        target.index_put_(index, torch.where(some, source.view(bits)[tokens], target[index]))


def _check_conversion(name: str, source: torch.dtype, cache: torch.dtype, scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise ValueError(
            f"anvil::write_kv_cache: {name[0]}_scale must be a positive number, but is {scale}"
        )
    if source == cache and scale == 1.0:
        return
    if source == cache and source not in _SOURCES:
        raise TypeError(
            f"anvil::write_kv_cache: {name[0]}_scale is {scale}, but {name} is {source} like the "
            "cache, whose bytes are copied as they are: give numbers in float32, bfloat16 or "
            "float16, or a scale of 1"
        )
    if source not in _SOURCES or cache not in _CACHES:
        raise TypeError(
            f"anvil::write_kv_cache: {name}_cache is {cache} but {name} is {source}; float32, "
            "bfloat16 and float16 are converted, to these, float8_e4m3fn, float8_e5m2 and int8: "
            "convert first, or view both as one type"
        )


def _stored(source: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """The numbers of `source` as a cache of that dtype holds them."""
    if source.dtype == dtype and scale == 1.0:
        return source
    wide = source if source.dtype == torch.float64 else source.float()
    # A tensor: some devices multiply by the reciprocal of a number of Python's.
    divisor = torch.full((), scale, dtype=torch.float32, device=source.device).to(wide.dtype)
    quotient = wide / divisor
    if dtype == torch.int8:
        return quotient.nan_to_num(nan=0.0).round().clamp(-128, 127).to(dtype)
    if dtype in _FLOAT8:
        largest = torch.finfo(dtype).max
        quotient = quotient.clamp(-largest, largest)
    return quotient.to(dtype)


def _check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    beyond = (slot_mapping >= num_slots).nonzero()
    if beyond.numel():
        at = int(beyond[0])
        raise IndexError(
            f"anvil::write_kv_cache: slot_mapping[{at}] is {int(slot_mapping[at])}, but must be "
            f"below {num_slots} (num_blocks * block_size)"
        )


def copy_blocks(cache: Tensor, block_pairs: Tensor) -> None:
    _copy(cache, cache, block_pairs, "anvil::copy_blocks")


def swap_blocks(src: Tensor, dst: Tensor, block_pairs: Tensor) -> None:
    _copy(src, dst, block_pairs, "anvil::swap_blocks")


def _copy(src: Tensor, dst: Tensor, block_pairs: Tensor, op: str) -> None:
    pairs = block_pairs.tolist()
    for row, pair in enumerate(pairs):
        for side, (block, cache) in enumerate(zip(pair, (src, dst), strict=True)):
            if not 0 <= block < len(cache):
                raise IndexError(
                    f"{op}: block_pairs[{row}, {side}] is {block}, but the cache has blocks 0 to "
                    f"{len(cache) - 1}"
                )
    for source, destination in pairs:
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
