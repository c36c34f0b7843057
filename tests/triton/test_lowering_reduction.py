# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans, along every axis."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)

SHAPES = [(1, 1), (1, 64), (64, 1), (4, 4), (2, 16), (16, 2), (8, 32), (32, 128)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-50, 50, shape, generator=torch.Generator().manual_seed(seed))


@triton.jit
def reduce_kernel(
    source, out, index_out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr
):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tile = tl.load(source + place)
    left: tl.constexpr = ROWS if AXIS == 1 else COLUMNS
    index = tl.arange(0, left)
    tl.store(out + index, tl.sum(tile, AXIS))
    tl.store(out + left + index, tl.max(tile, AXIS))
    tl.store(out + 2 * left + index, tl.min(tile, AXIS))
    tl.store(out + 3 * left + index, tl.xor_sum(tile, AXIS))
    tl.store(index_out + index, tl.argmax(tile, AXIS))
    tl.store(index_out + left + index, tl.argmin(tile, AXIS))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions(shape: tuple[int, int], axis: int) -> None:
    """Ties go to the first, as `argmax` promises."""
    source = numbers(*shape)
    left = shape[1 - axis]
    out = torch.zeros(4, left, dtype=torch.int64)
    index_out = torch.zeros(2, left, dtype=torch.int32)
    reduce_kernel[(1,)](source, out, index_out, ROWS=shape[0], COLUMNS=shape[1], AXIS=axis)
    array = source.numpy()
    import numpy

    expected = numpy.stack(
        [array.sum(axis), array.max(axis), array.min(axis), numpy.bitwise_xor.reduce(array, axis)]
    )
    assert (out.numpy() == expected).all()
    assert (index_out.numpy() == numpy.stack([array.argmax(axis), array.argmin(axis)])).all()


@triton.jit
def nan_kernel(source, out, SIZE: tl.constexpr):
    tile = tl.load(source + tl.arange(0, SIZE))
    tl.store(out, tl.max(tile, 0))
    value, index = tl.max(tile, 0, return_indices=True)
    tl.store(out + 1, value)
    tl.store(out + 2, index.to(tl.float32))
    tl.store(out + 3, tl.sum(tl.where(tile != tile, 1.0, 0.0), 0))


@pytest.mark.parametrize("size", [4, 16, 64, 1024])
def test_reductions_of_what_holds_nan(size: int) -> None:
    source = torch.arange(size, dtype=torch.float32)
    source[1] = float("nan")
    out = torch.zeros(4)
    nan_kernel[(1,)](source, out, SIZE=size)
    assert out[0] == size - 1 and out[3] == 1


@triton.jit
def pair(a_value, a_count, b_value, b_count):
    return a_value * b_count + b_value, a_count * b_count


@triton.jit
def custom_kernel(values, counts, out, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    value, count = tl.associative_scan((tl.load(values + index), tl.load(counts + index)), 0, pair)
    tl.store(out + index, value)
    tl.store(out + SIZE + index, count)


@pytest.mark.parametrize("size", [1, 2, 16, 64, 256])
def test_scan_by_a_function_that_keeps_order(size: int) -> None:
    """A linear recurrence: combining is associative, and not commutative."""
    values, counts = numbers(size), numbers(size, seed=1) % 3 - 1
    out = torch.zeros(2, size, dtype=torch.int64)
    custom_kernel[(1,)](values, counts, out, SIZE=size)
    value, count = int(values[0]), int(counts[0])
    expected = [(value, count)]
    for one, factor in zip(values[1:].tolist(), counts[1:].tolist(), strict=True):
        value, count = value * factor + one, count * factor
        expected.append((value, count))
    assert out.T.tolist() == [list(pair) for pair in expected]


@triton.jit
def scan_kernel(
    source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tile = tl.load(source + place)
    tl.store(out + place, tl.cumsum(tile, AXIS, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_cumulative_sums(shape: tuple[int, int], axis: int, reverse: bool) -> None:
    source = numbers(*shape)
    out = torch.zeros_like(source)
    scan_kernel[(1,)](source, out, ROWS=shape[0], COLUMNS=shape[1], AXIS=axis, REVERSE=reverse)
    expected = source.flip(axis).cumsum(axis).flip(axis) if reverse else source.cumsum(axis)
    assert torch.equal(out, expected)


@triton.jit
def middle_kernel(source, out, scanned, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    flat = tl.arange(0, A * B * C)
    tile = tl.reshape(tl.load(source + flat), (A, B, C))
    tl.store(out + tl.arange(0, A * C), tl.reshape(tl.sum(tile, 1), (A * C,)))
    tl.store(scanned + flat, tl.reshape(tl.cumsum(tile, 1), (A * B * C,)))


@pytest.mark.parametrize("shape", [(2, 4, 8), (4, 8, 2), (1, 16, 1), (2, 32, 32), (8, 2, 2)])
def test_along_the_middle_of_three_axes(shape: tuple[int, int, int]) -> None:
    source = numbers(*shape)
    a, b, c = shape
    out, scanned = torch.zeros(a, c, dtype=torch.int64), torch.zeros_like(source)
    middle_kernel[(1,)](source, out, scanned, A=a, B=b, C=c)
    assert torch.equal(out, source.sum(1)) and torch.equal(scanned, source.cumsum(1))


@triton.jit
def boolean_kernel(source, out, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    flags = tl.load(source + index) > 0
    tl.store(out + index, tl.cumsum(flags.to(tl.int32), 0))
    tl.store(out + SIZE, tl.sum(flags.to(tl.int32), 0))
    tl.store(out + SIZE + 1, tl.reduce_or(flags, 0).to(tl.int32))


@pytest.mark.parametrize("size", [1, 8, 16, 64])
def test_booleans(size: int) -> None:
    source = numbers(size)
    out = torch.zeros(size + 2, dtype=torch.int32)
    boolean_kernel[(1,)](source, out, SIZE=size)
    assert out.tolist() == [*(source > 0).cumsum(0).tolist(), int((source > 0).sum()),
                            int((source > 0).any())]  # fmt: skip


@triton.jit
def softmax_kernel(source, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    mask = index < columns
    value = tl.load(source + row * columns + index, mask=mask, other=float("-inf"))
    exponent = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + index, exponent / tl.sum(exponent, 0), mask=mask)


@pytest.mark.parametrize("columns", [1, 15, 17, 1000])
def test_softmax(columns: int) -> None:
    source = torch.randn(5, columns, generator=torch.Generator().manual_seed(0)) * 10
    out = torch.zeros_like(source)
    softmax_kernel[(5,)](source, out, columns, BLOCK=triton.next_power_of_2(columns))
    torch.testing.assert_close(out.double(), source.double().softmax(-1), rtol=1e-6, atol=1e-9)


@triton.jit
def extremes_kernel(source, out, SIZE: tl.constexpr):
    tile = tl.load(source + tl.arange(0, SIZE))
    tl.store(out, tl.max(tile, 0))
    tl.store(out + 1, tl.min(tile, 0))
    wide = tile.to(tl.float32)
    tl.store(out + 2, tl.max(tl.maximum(wide, -wide).to(tile.dtype), 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [2, 16, 32, 256])
def test_extremes_beside_nan(dtype: torch.dtype, size: int) -> None:
    """Of float16, what LLVM makes of `maxnum` would call libc."""
    source = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    source[1] = float("nan")
    out = torch.zeros(3, dtype=dtype)
    extremes_kernel[(1,)](source, out, SIZE=size)
    left = source[~source.isnan()]
    assert out.tolist() == [left.max().item(), left.min().item(), left.abs().max().item()]
