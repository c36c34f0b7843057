# SPDX-License-Identifier: Apache-2.0
"""The reference of the cache write, which serves where there is no kernel, against a plain loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_anvil.references.cache import write_kv_cache

BLOCKS, BLOCK_SIZE, HEADS = 5, 4, 2
SLOTS = BLOCKS * BLOCK_SIZE

# Orders of (block, offset, head) in memory.
ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)]

slot_lists = st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS).flatmap(
    lambda used: st.lists(st.integers(-5, -1), max_size=4).flatmap(
        lambda skipped: st.permutations([*used, *skipped])
    )
)


def bits(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bit patterns, NaNs included."""
    random = torch.Generator().manual_seed(seed)
    rows = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(256, rows, generator=random, dtype=torch.uint8).view(dtype)


def make_cache(order: tuple[int, ...], head_size: int, dtype: torch.dtype, seed: int):
    """A cache with gaps between its heads, and the memory that it is a view of."""
    sizes = (BLOCKS, BLOCK_SIZE, HEADS)
    memory = bits(*(sizes[i] for i in order), head_size + 3, dtype=dtype, seed=seed)
    inverse = [order.index(i) for i in range(3)]
    return memory.permute(*inverse, 3)[..., 2 : 2 + head_size], memory


@settings(deadline=None, max_examples=150)
@given(
    slots=slot_lists,
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from(
        [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.float64]
    ),
    surplus=st.integers(0, 2),
)
def test_writes_each_token_to_its_slot_and_nothing_else(
    slots: list[int], order: tuple[int, ...], dtype: torch.dtype, surplus: int
) -> None:
    key = bits(len(slots) + surplus, HEADS, 6, dtype=dtype, seed=1)
    value = bits(len(slots) + surplus, HEADS, 5, dtype=dtype, seed=2)
    key_cache, key_memory = make_cache(order, 6, dtype, 3)
    value_cache, value_memory = make_cache(order, 5, dtype, 4)
    expected = [key_memory.clone(), value_memory.clone()]
    for memory, cache, source in (
        (expected[0], key_cache, key),
        (expected[1], value_cache, value),
    ):
        view = memory.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        for token, slot in enumerate(slots):
            if slot >= 0:
                view[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = source[token]
    write_kv_cache(key, value, key_cache, value_cache, torch.tensor(slots, dtype=torch.int64))
    for memory, wanted in zip((key_memory, value_memory), expected, strict=True):
        assert torch.equal(memory.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("beyond", [SLOTS, SLOTS + 100])
def test_a_slot_past_the_end_is_refused_before_anything_is_written(beyond: int) -> None:
    key_cache, memory = make_cache((0, 1, 2), 6, torch.bfloat16, 1)
    before = memory.clone()
    key = bits(3, HEADS, 6, dtype=torch.bfloat16, seed=2)
    slots = torch.tensor([1, beyond, 2])
    with pytest.raises(IndexError, match=rf"slot_mapping\[1\] is {beyond}, .* below {SLOTS}"):
        write_kv_cache(key, key, key_cache, key_cache, slots)
    assert torch.equal(memory.view(torch.uint8), before.view(torch.uint8))


def test_what_is_not_converted_is_refused() -> None:
    cache, _ = make_cache((0, 1, 2), 6, torch.bfloat16, 1)
    key = torch.zeros(1, HEADS, 6, dtype=torch.int32)
    with pytest.raises(TypeError, match="key_cache is torch.bfloat16 but key is torch.int32"):
        write_kv_cache(key, key.bfloat16(), cache, cache, torch.tensor([0]))
    with pytest.raises(TypeError, match=r"v_scale is 0.5, but value is torch.uint8 like the cache"):
        byte = cache.to(torch.uint8)
        write_kv_cache(
            key.float(), key.to(torch.uint8), cache, byte, torch.tensor([0]), v_scale=0.5
        )
    with pytest.raises(ValueError, match="k_scale must be a positive number, but is 0"):
        write_kv_cache(key, key, cache, cache, torch.tensor([0]), k_scale=0)


def test_tensors_of_the_device(device: torch.device) -> None:
    slots = torch.tensor([7, -1, 0, 19, -1, 12])
    key, value = (bits(6, HEADS, 6, dtype=torch.float16, seed=seed) for seed in (1, 2))
    expected = [make_cache((0, 2, 1), 6, torch.float16, seed)[0].contiguous() for seed in (3, 4)]
    actual = [cache.to(device, copy=True) for cache in expected]
    write_kv_cache(key, value, *expected, slots)
    write_kv_cache(key.to(device), value.to(device), *actual, slots.to(device))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.cpu().view(torch.int16), other.view(torch.int16))


def test_no_value_is_looked_at_on_another_device_than_the_cpu() -> None:
    """A tensor without values stands for one of a device that would have to be waited for."""
    with torch.device("meta"):
        cache = torch.empty(BLOCKS, BLOCK_SIZE, HEADS, 6)
        key = torch.empty(7, HEADS, 6)
        slots = torch.empty(7, dtype=torch.int64)
    write_kv_cache(key, key, cache, torch.empty_like(cache), slots)
