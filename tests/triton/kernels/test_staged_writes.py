# SPDX-License-Identifier: Apache-2.0
"""Writes that were staged on the host, and KV cache blocks set to zero."""

import numpy as np
import pytest
import torch
from comparison import assert_equal, float32, int32, int64
from torch import Tensor
from vllm.v1.worker.gpu.buffer_utils import _apply_write_kernel
from vllm.v1.worker.utils import _zero_kv_blocks_kernel

APPLY = "vllm.v1.worker.gpu.buffer_utils:_apply_write_kernel"
ZERO = "vllm.v1.worker.utils:_zero_kv_blocks_kernel"

# (row, start, length): permuted rows, a row written twice at places that do not meet, an empty one.
WRITES = [(5, 0, 1500), (0, 7, 3), (2, 1024, 1024), (5, 1600, 1), (3, 4, 0), (1, 0, 1025)]


def contents_of(dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    random = np.random.default_rng(3)
    pieces = [random.normal(size=n) * 1e4 for _, _, n in WRITES]
    make = {torch.int32: int32, torch.int64: int64, torch.float32: float32}[dtype]
    return make(np.concatenate(pieces)), [make(piece) for piece in pieces]


def staged(device: torch.device) -> list[Tensor]:
    rows, starts, lengths = zip(*WRITES, strict=True)
    return [int32(v, device) for v in (rows, starts, np.cumsum(lengths))]


@pytest.mark.checks(APPLY)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_write_to_one_tensor(device: torch.device, dtype: torch.dtype) -> None:
    contents, pieces = contents_of(dtype)
    expected = torch.arange(6 * 2100).view(6, 2100).to(dtype)
    target = expected.to(device, copy=True)
    for (row, start, length), piece in zip(WRITES, pieces, strict=True):
        expected[row, start : start + length] = piece
    rows, starts, ends = staged(device)
    _apply_write_kernel[(len(WRITES),)](
        target,
        target.stride(0),
        rows,
        starts,
        contents.to(device),
        ends,
        None,
        BLOCK_SIZE=1024,
        MULTI_GROUP=False,
    )
    assert_equal(target, expected)


@pytest.mark.checks(APPLY)
def test_write_to_several_tensors(device: torch.device) -> None:
    contents, pieces = contents_of(torch.int32)
    groups = [2, 0, 1, 2, 0, 1]
    expected = [torch.full((6, width), g, dtype=torch.int32) for g, width in enumerate([64, 2048])]
    expected.append(torch.full((6, 2101), 2, dtype=torch.int32))
    targets = [t.to(device, copy=True) for t in expected]
    for (row, start, length), piece, group in zip(WRITES, pieces, groups, strict=True):
        expected[group][row, start : start + length] = piece
    rows, starts, ends = staged(device)
    _apply_write_kernel[(len(WRITES),)](
        torch.tensor([t.data_ptr() for t in targets], dtype=torch.uint64).to(device),
        int64([t.stride(0) for t in targets], device),
        rows,
        starts,
        contents.to(device),
        ends,
        int32(groups, device),
        BLOCK_SIZE=1024,
        MULTI_GROUP=True,
    )
    for target, wanted in zip(targets, expected, strict=True):
        assert_equal(target, wanted)


@pytest.mark.checks(ZERO)
def test_zero_blocks(device: torch.device) -> None:
    # Two layers: blocks of 1,500 elements with a gap of 36 behind each, and of 20 without.
    sizes, gaps, num_blocks = [1500, 20], [36, 0], 9
    caches = [
        torch.arange(1, num_blocks * (size + gap) + 1, dtype=torch.int32).view(num_blocks, -1)
        for size, gap in zip(sizes, gaps, strict=True)
    ]
    targets = [t.to(device, copy=True) for t in caches]
    blocks = [7, 0, 3, 7]
    _zero_kv_blocks_kernel[(len(blocks), len(sizes), 2)](
        torch.tensor([t.data_ptr() for t in targets], dtype=torch.uint64).to(device),
        int64([t.stride(0) for t in targets], device),
        int64(sizes, device),
        int64(blocks, device),
        BLOCK_SIZE=1024,
    )
    for cache, target, size in zip(caches, targets, sizes, strict=True):
        cache[blocks, :size] = 0
        assert_equal(target, cache)
