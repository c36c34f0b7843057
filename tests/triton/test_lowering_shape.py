# SPDX-License-Identifier: Apache-2.0
"""Operations that move elements."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns)


@triton.jit
def transpose_kernel(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.load(source + row[:, None] * COLUMNS + column[None, :])
    tl.store(target + column[:, None] * ROWS + row[None, :], tl.trans(tile) + 1)


@pytest.mark.parametrize("rows", [1, 2, 8, 16, 64])
@pytest.mark.parametrize("columns", [1, 4, 16, 128])
def test_transpose(rows: int, columns: int) -> None:
    source = matrix(rows, columns)
    target = torch.zeros(columns, rows, dtype=torch.int32)
    transpose_kernel[(1,)](source, target, ROWS=rows, COLUMNS=columns)
    assert torch.equal(target, source.T + 1)


@triton.jit
def permute_kernel(source, target, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    flat = tl.arange(0, A * B * C)
    tile = tl.reshape(tl.load(source + flat), (A, B, C))
    tl.store(target + flat, tl.reshape(tl.permute(tile, (2, 0, 1)), (A * B * C,)))


@pytest.mark.parametrize("shape", [(2, 4, 8), (4, 1, 16), (16, 2, 2), (1, 1, 1), (8, 32, 4)])
def test_permute_and_reshape(shape: tuple[int, int, int]) -> None:
    source = torch.arange(shape[0] * shape[1] * shape[2], dtype=torch.int32)
    target = torch.zeros_like(source)
    a, b, c = shape
    permute_kernel[(1,)](source, target, A=a, B=b, C=c)
    assert torch.equal(target, source.reshape(shape).permute(2, 0, 1).reshape(-1))


@triton.jit
def join_kernel(left, right, joined, halves, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    a, b = tl.load(left + index), tl.load(right + index)
    both = tl.join(a, b)
    wide = index[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(joined + wide, both)
    first, second = tl.split(tl.load(joined + wide) * 3)
    tl.store(halves + index, first)
    tl.store(halves + BLOCK + index, second)
    tl.store(halves + 2 * BLOCK + tl.arange(0, 2 * BLOCK), tl.interleave(b, a))


@pytest.mark.parametrize("block", [1, 2, 8, 16, 64])
def test_join_split_interleave(block: int) -> None:
    left = torch.arange(block, dtype=torch.float32)
    right = left + 1000
    joined, halves = torch.zeros(block, 2), torch.zeros(4 * block)
    join_kernel[(1,)](left, right, joined, halves, BLOCK=block)
    assert torch.equal(joined, torch.stack([left, right], -1))
    expected = torch.cat([left * 3, right * 3, torch.stack([right, left], -1).reshape(-1)])
    assert torch.equal(halves, expected)


@triton.jit
def cat_kernel(left, right, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    both = tl.cat(tl.load(left + index), tl.load(right + index), can_reorder=True)
    tl.store(out + tl.arange(0, 2 * BLOCK), both)


@pytest.mark.parametrize("block", [1, 8, 64])
def test_cat(block: int) -> None:
    left = torch.arange(block, dtype=torch.int64)
    out = torch.zeros(2 * block, dtype=torch.int64)
    cat_kernel[(1,)](left, left + 100, out, BLOCK=block)
    assert sorted(out.tolist()) == sorted([*left.tolist(), *(left + 100).tolist()])


@triton.jit
def gather_kernel(
    source, index_ptr, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr
):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    picked = tl.gather(tl.load(source + place), tl.load(index_ptr + place), AXIS)
    tl.store(out + place, picked)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 8), (16, 4), (8, 64), (2, 1)])
def test_gather(axis: int, shape: tuple[int, int]) -> None:
    source = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, shape[axis], shape, generator=generator)
    out = torch.zeros(shape)
    gather_kernel[(1,)](source, index.int(), out, ROWS=shape[0], COLUMNS=shape[1], AXIS=axis)
    assert torch.equal(out, source.gather(axis, index))


@triton.jit
def outer_kernel(left, right, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    # The root is worth keeping: broadcast, it would be made once per column.
    tile = tl.sqrt(tl.load(left + row))[:, None] * tl.load(right + column)[None, :]
    tl.store(out + row[:, None] * COLUMNS + column[None, :], tile)


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (64, 1), (4, 4), (32, 128)])
def test_broadcast(shape: tuple[int, int]) -> None:
    left, right = torch.rand(shape[0]), torch.rand(shape[1])
    out = torch.zeros(shape)
    outer_kernel[(1,)](left, right, out, ROWS=shape[0], COLUMNS=shape[1])
    root = left.double().sqrt().float()
    assert torch.equal(out, root[:, None] * right[None, :])


@triton.jit
def sort_kernel(source, out, SIZE: tl.constexpr, DESCENDING: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out + index, tl.sort(tl.load(source + index), descending=DESCENDING))
    tl.store(out + SIZE + index, tl.flip(tl.load(source + index)))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [2, 16, 128, 1024])
def test_sort_and_flip(size: int, descending: bool) -> None:
    source = torch.randn(size, generator=torch.Generator().manual_seed(size))
    out = torch.zeros(2 * size)
    sort_kernel[(1,)](source, out, SIZE=size, DESCENDING=descending)
    assert torch.equal(out[:size], source.sort(descending=descending).values)
    assert torch.equal(out[size:], source.flip(0))


@triton.jit
def histogram_kernel(source, out, count, SIZE: tl.constexpr, BINS: tl.constexpr):
    index = tl.arange(0, SIZE)
    counts = tl.histogram(tl.load(source + index), BINS, mask=index < count)
    tl.store(out + tl.arange(0, BINS), counts)


@pytest.mark.parametrize("bins", [2, 16, 128])
def test_histogram(bins: int) -> None:
    source = torch.randint(0, bins, (256,), generator=torch.Generator().manual_seed(bins))
    out = torch.zeros(bins, dtype=torch.int32)
    histogram_kernel[(1,)](source.int(), out, 200, SIZE=256, BINS=bins)
    assert torch.equal(out.long(), torch.bincount(source[:200], minlength=bins))
