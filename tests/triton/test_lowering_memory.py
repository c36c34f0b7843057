# SPDX-License-Identifier: Apache-2.0
"""Loads and stores: masks, strides, offsets, aliasing, order."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


def numbers(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 100, (count,), generator=generator)
    return whole % 2 == 1 if dtype == torch.bool else whole.to(dtype)


@triton.jit
def copy_kernel(source, target, count, stride, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(target + index * stride, tl.load(source + index * stride, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("device", ["cpu", "anvil"])
def test_copy_touches_what_the_mask_says(dtype: torch.dtype, stride: int, device: str) -> None:
    count = 77
    source = numbers(count * stride + 8, dtype).to(device)
    target = torch.zeros_like(source)
    copy_kernel[(3,)](source, target, count, stride, BLOCK=32)
    expected = torch.zeros_like(source, device="cpu")
    expected[: count * stride : stride] = source.cpu()[: count * stride : stride]
    assert torch.equal(target.cpu(), expected)


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128, 2048])
def test_copy_of_every_block_size(block: int) -> None:
    source = numbers(3 * block, torch.int32)
    target = torch.zeros_like(source)
    copy_kernel[(3,)](source[1:], target[1:], 3 * block - 1, 1, BLOCK=block)
    assert torch.equal(target[1:], source[1:]) and target[0] == 0


@triton.jit
def other_kernel(source, target, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index, mask=index < count, other=-7))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64])
def test_other_stands_where_the_mask_is_false(count: int) -> None:
    source = numbers(64, torch.float32)
    target = torch.empty(64)
    other_kernel[(1,)](source, target, count, BLOCK=64)
    assert torch.equal(target[:count], source[:count])
    assert (target[count:] == -7).all()


@triton.jit
def nothing_kernel(wild, target, flag, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    no = flag > index + 1000
    value = tl.load(wild + index * 1000003, mask=no, other=3)
    one = tl.load(wild + flag, mask=flag > 1000, other=4)
    same = tl.load(wild + flag + index * 0, mask=no, other=5)
    tl.store(wild + index * 1000003, value, mask=no)
    tl.store(wild + flag, one, mask=flag > 1000)
    tl.store(target + index, value + one + same)


def test_masked_off_lanes_touch_no_memory() -> None:
    """The addresses are nowhere: reading or writing any would end the process."""
    wild = torch.zeros(1, dtype=torch.int32)
    target = torch.zeros(64, dtype=torch.int32)
    nothing_kernel[(1,)](wild, target, 7, BLOCK=64)
    assert (target == 12).all()


@triton.jit
def gather_kernel(source, index_ptr, target, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + lane)
    tl.store(target + index, tl.load(source + (BLOCK - 1 - index)))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_and_scatter(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    source = numbers(64, dtype)
    index = torch.randperm(64, generator=torch.Generator().manual_seed(1)).to(index_dtype)
    target = torch.zeros_like(source)
    gather_kernel[(1,)](source, index, target, BLOCK=64)
    assert torch.equal(target, source.flip(0))


@triton.jit
def shift_kernel(data, by, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.load(data + index)
    tl.store(data + index + by, value)


@pytest.mark.parametrize("by", [1, 16, 100])
def test_a_tile_is_read_before_any_of_it_is_written(by: int) -> None:
    """The store runs chunk by chunk over what the load reads."""
    data = torch.arange(512, dtype=torch.int32)
    shift_kernel[(1,)](data, by, BLOCK=256)
    expected = torch.arange(512, dtype=torch.int32)
    expected[by : 256 + by] = torch.arange(256, dtype=torch.int32)
    assert torch.equal(data, expected)


@triton.jit
def reverse_kernel(data, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.load(data + BLOCK - 1 - index)
    tl.store(data + index, value * 2)


def test_a_tile_reversed_in_place() -> None:
    data = torch.arange(128, dtype=torch.int32)
    reverse_kernel[(1,)](data, BLOCK=128)
    assert torch.equal(data, torch.arange(128, dtype=torch.int32).flip(0) * 2)


@triton.jit
def later_use_kernel(data, other, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    value = tl.load(data + index)
    tl.store(other + index, index * 0 - 1)
    tl.store(out + index, value + 1)


def test_what_was_loaded_stays_when_memory_changes() -> None:
    """Two arguments over the same memory: the value loaded first is the old one."""
    data = torch.arange(128, dtype=torch.int32)
    out = torch.zeros_like(data)
    later_use_kernel[(1,)](data, data, out, BLOCK=128)
    assert torch.equal(out, torch.arange(128, dtype=torch.int32) + 1)
    assert (data == -1).all()


@triton.jit
def loop_kernel(data, out, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    first = tl.load(data + index)
    for step in range(count):
        tl.store(data + index, first + step + 100)
    tl.store(out + index, first)


def test_what_was_loaded_before_a_loop_that_writes() -> None:
    data = torch.arange(64, dtype=torch.int32)
    out = torch.zeros_like(data)
    loop_kernel[(1,)](data, out, 3, BLOCK=64)
    assert torch.equal(out, torch.arange(64, dtype=torch.int32))
    assert torch.equal(data, out + 102)


@triton.jit
def wide_kernel(data, out, row, stride, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(data + row.to(tl.int64) * stride + index))


def test_offsets_beyond_two_gibibytes() -> None:
    data = torch.zeros((1 << 31) + 4096, dtype=torch.int8)
    data[(1 << 31) : (1 << 31) + 64] = torch.arange(64, dtype=torch.int8)
    out = torch.zeros(64, dtype=torch.int8)
    wide_kernel[(1,)](data, out, 1 << 11, 1 << 20, BLOCK=64)
    assert torch.equal(out, torch.arange(64, dtype=torch.int8))


@triton.jit
def table_kernel(table, out, count, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    pointer = tl.load(table + row).to(tl.pointer_type(tl.int32))
    index = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + index, tl.load(pointer + index, mask=index < count, other=0))


def test_pointers_read_from_memory() -> None:
    rows = [numbers(40, torch.int32, seed) for seed in range(3)]
    table = torch.tensor([row.data_ptr() for row in rows])
    out = torch.zeros(3, 64, dtype=torch.int32)
    table_kernel[(3,)](table, out, 40, BLOCK=64)
    assert torch.equal(out[:, :40], torch.stack(rows)) and not out[:, 40:].any()


@triton.jit
def reuse_kernel(data, out, rounds):
    for _ in range(rounds):
        small = tl.load(data + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :])
        tl.store(data + tl.arange(0, 4), tl.argmax(small, 1))
    tl.store(out + tl.arange(0, 16), tl.flip(tl.arange(0, 16), 0))


@pytest.mark.parametrize("rounds", [0, 2])
def test_memory_of_a_small_tile_is_used_again_for_a_larger_one(rounds: int) -> None:
    out = torch.full((16,), -1, dtype=torch.int32)
    reuse_kernel[(1,)](torch.arange(16, dtype=torch.int32), out, rounds)
    assert out.tolist() == list(range(15, -1, -1))


@triton.jit
def swapped_kernel(first, second, rounds, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    a, b = first + index, second + index
    for _ in range(rounds):
        a, b = b, a
    # Of the same memory where the pointers have changed places: one element further on.
    tl.store(second + 1 + index, tl.load(a) * 2)


@pytest.mark.parametrize("rounds", [0, 2, 3])
@pytest.mark.parametrize("size", [16, 64, 1024])
def test_pointers_that_change_places_in_a_loop(rounds: int, size: int) -> None:
    first, second = torch.arange(size + 1), torch.arange(size + 1) + 1000
    sources = [first.clone(), second.clone()]
    swapped_kernel[(1,)](first, second, rounds, SIZE=size)
    assert torch.equal(first, sources[0])
    assert torch.equal(second[1:], sources[rounds % 2][:-1] * 2)
