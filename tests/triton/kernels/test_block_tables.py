# SPDX-License-Identifier: Apache-2.0
"""Block tables: rows gathered in batch order, and the KV cache slot of every token."""

import numpy as np
import pytest
import torch
from comparison import assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.block_table import _COMPUTE_SLOT_MAPPING_KERNEL
from vllm.v1.worker.gpu.block_table import (
    _compute_slot_mappings_kernel,
    _gather_block_tables_kernel,
)
from vllm.v1.worker.gpu.cp_utils import prepare_dcp_local_seq_lens

GATHER = "vllm.v1.worker.gpu.block_table:_gather_block_tables_kernel"
SLOTS = "vllm.v1.worker.gpu.block_table:_compute_slot_mappings_kernel"
SLOTS_V1 = "vllm.v1.worker.block_table:ComputeSlotMappingKernel.kernel"
LOCAL_LENS = "vllm.v1.worker.gpu.cp_utils:_dcp_local_seq_lens_kernel"


def random_tables(widths: list[int], rows: int, device: torch.device) -> list[Tensor]:
    random = np.random.default_rng(5)
    return [int32(random.integers(1, 2**20, (rows, width)), device) for width in widths]


def addresses(tables: list[Tensor], device: torch.device) -> Tensor:
    return torch.tensor([t.data_ptr() for t in tables], dtype=torch.uint64).to(device)


def strides(tables: list[Tensor], device: torch.device) -> Tensor:
    return int64([t.stride(0) for t in tables], device)


@pytest.mark.checks(GATHER)
@pytest.mark.parametrize(
    ("request_states", "num_padded"),
    [([4, 0, 7, 2, 5], 8), ([3], 1), ([], 3)],
    ids=["permuted and padded", "one row", "only padding"],
)
def test_gather(device: torch.device, request_states: list[int], num_padded: int) -> None:
    widths = [1500, 1, 1024]
    source = random_tables(widths, 8, device)
    # Rows hold what an earlier batch left; only blocks in use are copied over it.
    target = [torch.full_like(t, -5) for t in source]
    counts = int32([[1500, 0, 1025, 3, 17, 1, 8, 1024], [1, 0, 1, 1, 1, 1, 1, 0], [1024, 1] * 4])
    _gather_block_tables_kernel[(len(widths), num_padded)](
        int32(request_states, device),
        addresses(source, device),
        addresses(target, device),
        strides(source, device),
        counts.to(device),
        counts.stride(0),
        len(request_states),
        BLOCK_SIZE=1024,
    )
    for group, table in enumerate(source):
        expected = torch.full(table.shape, -5, dtype=torch.int32)
        for row, state in enumerate(request_states):
            used = counts[group, state]
            expected[row, :used] = table.cpu()[state, :used]
        expected[len(request_states) : num_padded] = 0
        assert_equal(target[group], expected)


def slot_of(position: int, row: Tensor, block_size: int, size: int, rank: int, interleave: int):
    """The slot where rank `rank` of `size` keeps `position`, or the padding id.

    Ranks take turns at `interleave` tokens; a block holds the `block_size` that one rank keeps of
    `block_size * size` consecutive tokens.
    """
    turn, within = divmod(position, interleave)
    if turn % size != rank:
        return PAD_SLOT_ID
    kept_before = turn // size * interleave + within
    return int(row[position // (block_size * size)]) * block_size + kept_before % block_size


@pytest.mark.checks(SLOTS)
@pytest.mark.parametrize(
    ("size", "rank", "interleave"),
    [(1, 0, 1), (3, 1, 4), (2, 0, 16)],
    ids=["one rank", "interleaved by 4 over 3", "interleaved by a block over 2"],
)
def test_slot_mappings(device: torch.device, size: int, rank: int, interleave: int) -> None:
    block_sizes = [16, 64, 48, 16]
    enabled = [True, True, True, False]
    sharded = [True, False, True, True]
    capacity = 110 * 16
    tables = random_tables([capacity // 16 + 1, capacity // 64 + 1, 40, 111], 6, device)
    # The third request is a dummy without blocks; the second has more tokens than one tile.
    states, lengths = [4, 1, -1, 0], [1, 1100, 5, 33]
    starts = [0, 640, 0, 95]
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    max_num_tokens = len(positions) + 1030
    slots = torch.full((len(tables), max_num_tokens), 123, dtype=torch.int64, device=device)
    _compute_slot_mappings_kernel[(len(tables), len(states) + 1)](
        max_num_tokens,
        int32(states, device),
        offsets(lengths).to(device),
        int64(positions, device),
        addresses(tables, device),
        strides(tables, device),
        int32(block_sizes, device),
        torch.tensor(enabled).to(device),
        torch.tensor(sharded).to(device),
        slots,
        slots.stride(0),
        rank,
        CP_SIZE=size,
        CP_INTERLEAVE=interleave,
        PAD_ID=PAD_SLOT_ID,
        TRITON_BLOCK_SIZE=1024,
    )
    expected = torch.full(slots.shape, PAD_SLOT_ID)
    owners = np.repeat(states, lengths)
    for group, table in enumerate(tables):
        rows, block_size = table.cpu(), block_sizes[group]
        ranks = (size, rank, interleave) if sharded[group] else (1, 0, 1)
        for token, (state, position) in enumerate(zip(owners, positions, strict=True)):
            if enabled[group] and state >= 0:
                expected[group, token] = slot_of(int(position), rows[state], block_size, *ranks)
    assert_equal(slots, expected)


@pytest.mark.checks(SLOTS_V1)
@pytest.mark.parametrize(
    ("block_size", "size", "rank", "interleave"), [(16, 1, 0, 1), (32, 3, 2, 8)]
)
def test_slot_mapping_of_the_first_runner(
    device: torch.device, block_size: int, size: int, rank: int, interleave: int
) -> None:
    lengths, starts = [1, 1026, 0, 30], [77, 3, 0, 500]
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    [table] = random_tables([71], 5, device)
    max_num_tokens = len(positions) + 1500
    slots = torch.full((max_num_tokens,), 123, dtype=torch.int64, device=device)
    _COMPUTE_SLOT_MAPPING_KERNEL(
        num_reqs=len(lengths),
        num_tokens=len(positions),
        max_num_tokens=max_num_tokens,
        query_start_loc=offsets(lengths).to(device),
        positions=int64(positions, device),
        block_table=table,
        block_table_stride=table.stride(0),
        slot_mapping=slots,
        kv_cache_block_size=block_size,
        total_cp_world_size=size,
        total_cp_rank=rank,
        cp_kv_cache_interleave_size=interleave,
    )
    rows = table.cpu()
    expected = torch.full((max_num_tokens,), PAD_SLOT_ID)
    for token, (row, position) in enumerate(
        zip(np.repeat(np.arange(4), lengths), positions, strict=True)
    ):
        expected[token] = slot_of(int(position), rows[row], block_size, size, rank, interleave)
    assert_equal(slots, expected)


@pytest.mark.checks(LOCAL_LENS)
@pytest.mark.parametrize(("size", "interleave"), [(2, 1), (3, 16)])
def test_local_sequence_lengths(device: torch.device, size: int, interleave: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 5000, 131)
    shares = []
    for rank in range(size):
        local = torch.full((150,), -9, dtype=torch.int32, device=device)
        given = torch.cat([int32(lengths), torch.full((19,), 77, dtype=torch.int32)])
        found = prepare_dcp_local_seq_lens(
            local, given.to(device), 131, size, rank, interleave, num_reqs_padded=140
        )
        assert found.data_ptr() == local.data_ptr() and len(found) == 140
        owned = [int((np.arange(n) // interleave % size == rank).sum()) for n in lengths]
        assert_equal(local, int32([*owned, *[0] * 19]))
        shares.append(found.cpu())
    assert_equal(sum(shares)[:131], int32(lengths))
