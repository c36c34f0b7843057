# SPDX-License-Identifier: Apache-2.0
"""Loops, conditions, early returns, calls: what is carried, and in which order."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def early_return_kernel(flags, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if tl.load(flags + row) == 0:
        return
    index = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + index, index + row)


def test_early_return() -> None:
    flags = torch.tensor([1, 0, 1, 0, 1], dtype=torch.int32)
    out = torch.full((5, 32), -1, dtype=torch.int32)
    early_return_kernel[(5,)](flags, out, BLOCK=32)
    expected = torch.arange(32, dtype=torch.int32) + torch.arange(5, dtype=torch.int32)[:, None]
    assert torch.equal(out, torch.where(flags[:, None] == 1, expected, -1))


@triton.jit
def two_ways_kernel(index_ptr, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    tile = lane * 3 + row
    picks = tl.load(index_ptr + lane)
    if row == 0:
        tl.store(out + lane, tl.gather(tile, picks, 0))
        return
    tl.store(out + row * BLOCK + lane, tl.gather(tile, picks, 0) + 1)


def test_a_tile_that_each_way_puts_into_memory() -> None:
    picks = torch.randperm(64, generator=torch.Generator().manual_seed(0)).int()
    out = torch.zeros(2, 64, dtype=torch.int32)
    two_ways_kernel[(2,)](picks, out, BLOCK=64)
    assert torch.equal(out, torch.stack([picks * 3, picks * 3 + 2]))


@triton.jit
def fibonacci_kernel(out, steps, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    a, b = index * 0, index * 0 + 1
    for _ in range(steps):
        a, b = b, a + b
    tl.store(out + index, a)
    tl.store(out + BLOCK + index, b)


@pytest.mark.parametrize("steps", [0, 1, 2, 11])
@pytest.mark.parametrize("block", [1, 16, 128])
def test_tiles_that_swap_in_a_loop(steps: int, block: int) -> None:
    out = torch.zeros(2, block, dtype=torch.int32)
    fibonacci_kernel[(1,)](out, steps, BLOCK=block)
    a, b = 0, 1
    for _ in range(steps):
        a, b = b, a + b
    assert (out[0] == a).all() and (out[1] == b).all()


@triton.jit
def rotate_kernel(source, out, steps, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = tl.load(source + place)
    total = tl.zeros((SIZE,), tl.int32)
    for step in range(steps):
        tile = tl.trans(tile) + step
        total += tl.sum(tile, 0)
    tl.store(out + place, tile + total[None, :])


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("size", [2, 16, 32])
def test_a_tile_transposed_in_a_loop(steps: int, size: int) -> None:
    source = torch.arange(size * size, dtype=torch.int32).reshape(size, size)
    out = torch.zeros_like(source)
    rotate_kernel[(1,)](source, out, steps, SIZE=size)
    tile, total = source.clone(), torch.zeros(size, dtype=torch.int32)
    for step in range(steps):
        tile = tile.T + step
        total += tile.sum(0, dtype=torch.int32)
    assert torch.equal(out, tile + total)


@triton.jit
def pointers_kernel(source, out, steps, stride, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    pointers = source + index
    offsets = index
    total = tl.zeros((BLOCK,), tl.int32)
    for step in range(steps):
        total += tl.load(pointers) * (step + 1) + offsets
        pointers += stride
        offsets += 3
    tl.store(out + index, total)
    tl.store(out + BLOCK + index, tl.load(pointers))
    tl.store(out + 2 * BLOCK + index, offsets)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_pointers_that_move_in_a_loop(steps: int) -> None:
    source = torch.arange(1000, dtype=torch.int32)
    out = torch.zeros(3, 64, dtype=torch.int32)
    pointers_kernel[(1,)](source, out, steps, 70, BLOCK=64)
    index = torch.arange(64, dtype=torch.int32)
    total = sum(
        (source[step * 70 : step * 70 + 64] * (step + 1) + index + 3 * step
         for step in range(steps)),
        torch.zeros(64, dtype=torch.int32),
    )  # fmt: skip
    assert torch.equal(out[0], total)
    assert torch.equal(out[1], source[steps * 70 : steps * 70 + 64])
    assert torch.equal(out[2], index + 3 * steps)


@triton.jit
def while_kernel(out, limit, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tile = index
    count = 0
    while (tl.sum(tile, 0) < limit) & (count < 100):
        tile = tile * 2 + 1
        count += 1
    tl.store(out + index, tile)
    tl.store(out + BLOCK, count)


@pytest.mark.parametrize("limit", [0, 1000, 10**6])
def test_while(limit: int) -> None:
    out = torch.zeros(33, dtype=torch.int32)
    while_kernel[(1,)](out, limit, BLOCK=32)
    tile, count = torch.arange(32), 0
    while tile.sum() < limit and count < 100:
        tile, count = tile * 2 + 1, count + 1
    assert out.tolist() == [*tile.tolist(), count]


@triton.jit
def branches_kernel(source, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    tile = tl.load(source + index)
    scale = 1
    if row == 0:
        tile = tile + 10
        scale = 2
    elif row == 1:
        tl.store(source + index, tile * 0 + 7)
        tile = tile * 3
    for step in range(row):
        if step % 2 == 1:
            tile = tile + step
    tl.store(out + row * BLOCK + index, tile * scale)


def test_branches_with_tiles_scalars_and_stores() -> None:
    source = torch.arange(64, dtype=torch.int32)
    out = torch.zeros(5, 64, dtype=torch.int32)
    for row in range(5):  # one after the other: program 1 changes what others read
        part = source.clone()
        single = torch.zeros(5, 64, dtype=torch.int32)
        branches_kernel[(row + 1,)](part, single, BLOCK=64)
        if row != 1 and row < 2:
            out[row] = single[row]
    assert torch.equal(out[0], (source + 10) * 2)
    part, single = source.clone(), torch.zeros(2, 64, dtype=torch.int32)
    branches_kernel[(2,)](part, single, BLOCK=64)
    assert torch.equal(single[1], source * 3) or torch.equal(single[1], torch.full((64,), 21))
    assert (part == 7).all()


@triton.jit(noinline=True)
def called(pointer, scalar, BLOCK: tl.constexpr):
    tile = tl.load(pointer + tl.arange(0, BLOCK))
    if scalar > 2:
        tile = tl.cumsum(tile, 0) * scalar
    tl.store(pointer + tl.arange(0, BLOCK), tile + 1)
    return tl.max(tile, 0), tl.sum(tile, 0) > 5


@triton.jit
def calling_kernel(data, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for step in range(2):
        most, large = called(data + row * BLOCK, row, BLOCK)
        tl.store(out + row * 4 + step * 2, most)
        tl.store(out + row * 4 + step * 2 + 1, large.to(tl.int32))


@pytest.mark.parametrize("block", [1, 16, 64, 8192])
def test_functions_that_are_not_inlined(block: int) -> None:
    data = (torch.arange(block) % 3).to(torch.int32).repeat(5, 1)
    expected = data.clone()
    out = torch.zeros(5, 2, 2, dtype=torch.int32)
    calling_kernel[(5,)](data, out, BLOCK=block)
    for row in range(5):
        for step in range(2):
            tile = expected[row].clone()
            if row > 2:
                tile = tile.cumsum(0, dtype=torch.int32) * row
            expected[row] = tile + 1
            total = tile.sum(dtype=torch.int32)
            assert out[row, step].tolist() == [int(tile.max()), int(total > 5)]
    assert torch.equal(data, expected)


@triton.jit
def grid_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, height, depth = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    tl.store(out + (z * height + y) * width + x, x + 10 * y + 100 * z + 1000 * depth)


def test_three_dimensional_grid() -> None:
    out = torch.zeros(4, 3, 5, dtype=torch.int32)
    grid_kernel[(5, 3, 4)](out)
    z, y, x = torch.meshgrid(*(torch.arange(n) for n in (4, 3, 5)), indexing="ij")
    assert torch.equal(out.long(), x + 10 * y + 100 * z + 4000)
