# SPDX-License-Identifier: Apache-2.0
"""State of recurrent layers: which block holds it, and copies of it between blocks.

A convolution's state is a window of the last tokens: accepting `bias` tokens moves it to the left
by as many. A recurrence's state has a block for each draft, and the accepted one is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from comparison import assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.worker.gpu.model_states.mamba_hybrid import (
    _fill_num_accepted_kernel,
    _scatter_num_accepted_kernel,
)
from vllm.v1.worker.gpu.model_states.recoverssm import _postprocess_recoverssm_align_kernel
from vllm.v1.worker.mamba_utils import (
    batch_memcpy,
    get_aligned_state_indices_multi_group_kernel,
    postprocess_mamba_fused_kernel,
    precopy_mamba_align_fused_kernel,
    preprocess_mamba_align_fused_kernel,
)

HYBRID = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
RECOVER = "vllm.v1.worker.gpu.model_states.recoverssm:_postprocess_recoverssm_align_kernel"
MAMBA = "vllm.v1.worker.mamba_utils"
BLOCK = 8  # tokens of a state's block
NUM_BLOCKS, NUM_REQS, COLUMNS = 40, 5, 7


@pytest.mark.checks(f"{HYBRID}:_scatter_num_accepted_kernel", f"{HYBRID}:_fill_num_accepted_kernel")
def test_accepted_tokens(device: torch.device) -> None:
    mapping, sampled = [3, -1, 0, 5], [4, 9, 0, 1]
    accepted = int32([7] * 6, device)
    _scatter_num_accepted_kernel[(4,)](int32(mapping, device), int32(sampled, device), accepted)
    assert_equal(accepted, int32([1, 7, 7, 4, 7, 1]))
    _fill_num_accepted_kernel[(4,)](int32(mapping, device), accepted, 3)
    assert_equal(accepted, int32([3, 7, 7, 3, 7, 3]))


@pytest.mark.checks(RECOVER)
@pytest.mark.parametrize("with_requests", [False, True])
def test_recovered_state(device: torch.device, with_requests: bool) -> None:
    mapping, sampled, computed = [2, 0, -1, 1], [3, 1, 2, 4], [14, 0, 9, 60]
    requests = [3, 0, 2] if with_requests else [0, 1, 2]
    columns, accepted = int32([-1] * 4, device), int32([9] * 4, device)
    _postprocess_recoverssm_align_kernel[(3,)](
        int32(mapping, device),
        int32(sampled, device),
        int32(requests, device) if with_requests else None,
        int32(computed, device),
        columns,
        accepted,
        MAMBA_BLOCK_SIZE=BLOCK,
        BLOCK_TABLE_WIDTH=COLUMNS,
    )
    want_columns, want_accepted = int32([-1] * 4), int32([9] * 4)
    for row in requests:
        state = mapping[row]
        if state >= 0:
            last = max(computed[row] + sampled[row] - 1, 0)
            want_columns[state] = min(last // BLOCK, COLUMNS - 1)
            want_accepted[state] = 1
    assert_equal(columns, want_columns)
    assert_equal(accepted, want_accepted)


@pytest.mark.checks(f"{MAMBA}:get_aligned_state_indices_multi_group_kernel")
@pytest.mark.parametrize(("groups", "slots"), [(1, 1), (3, 3)])
def test_aligned_indices(device: torch.device, groups: int, slots: int) -> None:
    count, width = 37, 20
    random = np.random.default_rng(0)
    tables = [int32(random.integers(0, 9999, (count + 3, width)), device) for _ in range(groups)]
    lengths = random.integers(0, 16 * (width - slots), count)
    lengths[:3] = [0, 16, 17]
    found = torch.full((groups, count + 3, slots), -1, dtype=torch.int32, device=device)
    rows = 16
    get_aligned_state_indices_multi_group_kernel[(-(-count // rows),)](
        int64([t.data_ptr() for t in tables], device),
        int32(lengths, device),
        found,
        width,
        1,
        *found.stride(),
        count,
        CACHE_BLOCK_SIZE=16,
        NUM_GROUPS=groups,
        BLOCK_GROUPS=1 << (groups - 1).bit_length(),
        NUM_STATE_SLOTS=slots,
        BLOCK_STATE_SLOTS=1 << (slots - 1).bit_length(),
        BLOCK_ROWS=rows,
    )
    expected = torch.full(found.shape, -1, dtype=torch.int32)
    for row, length in enumerate(lengths):
        first = max(int(length) - 1, 0) // 16
        for group, table in enumerate(tables):
            expected[group, row] = table[row, first : first + slots].cpu()
    assert_equal(found, expected)


@pytest.mark.checks(f"{MAMBA}:preprocess_mamba_align_fused_kernel")
def test_columns_before_a_step(device: torch.device) -> None:
    mapping, lengths = [3, 0, 4, 1], [4, 1, 9, 2]
    columns, computed, accepted = [0, -1, 5, 1, 2], [7, 6, 99, 15, 16], [2, 1, 9, 4, 0]
    on = [int32(v, device) for v in (columns, computed, accepted)]
    source, bias = (torch.full((5,), -9, dtype=torch.int32, device=device) for _ in range(2))
    preprocess_mamba_align_fused_kernel[(1,)](
        int32(mapping, device),
        on[0],
        on[1],
        offsets(lengths).to(device),
        on[2],
        source,
        bias,
        4,
        BLOCK_SIZE=256,
        MAMBA_BLOCK_SIZE=BLOCK,
    )
    want = {"columns": columns[:], "accepted": accepted[:], "source": [-9] * 5, "bias": [-9] * 5}
    for row, state in enumerate(mapping):
        want["source"][state] = columns[state]
        want["bias"][state] = max(accepted[state] - 1, 0)
        column = -(-(computed[state] + lengths[row]) // BLOCK) - 1
        if 0 <= columns[state] != column:
            want["accepted"][state] = 1
        want["columns"][state] = column
    for found, name in [
        (on[0], "columns"),
        (on[2], "accepted"),
        (source, "source"),
        (bias, "bias"),
    ]:
        assert_equal(found, int32(want[name]))


@dataclass
class State:
    """One layer's state: [blocks, ...] in blocks whose stride is larger than their contents."""

    values: Tensor
    width: int  # tokens of a convolution's window, 0 for a recurrence
    group: int

    def copy(self, device: torch.device) -> Tensor:
        blocks, *inner = self.values.shape
        size = self.values[0].numel()
        # A page for each block, as it would be shared with other layers; no multiple of 16 bytes.
        storage = torch.zeros(blocks, size + 7, dtype=self.values.dtype, device=device)
        view = storage[:, :size].unflatten(1, inner)
        view.copy_(self.values)
        return view


def make_states(dim_first: bool) -> list[State]:
    torch.manual_seed(0)
    # Sizes that are no multiples of 8 bytes; the last has several tiles of its copy.
    conv = (37, 6) if dim_first else (6, 37)
    return [
        State(torch.randn(NUM_BLOCKS, *conv).bfloat16(), 6, 0),
        State(torch.randn(NUM_BLOCKS, 3, 5, 11), 0, 0),
        State(torch.randn(NUM_BLOCKS, *conv), 6, 1),
        State(torch.randn(NUM_BLOCKS, 9001).half(), 0, 1),
        State(torch.randint(0, 127, (NUM_BLOCKS, *conv)).to(torch.int8), 6, 1),
    ]


class Layers:
    """The states of all layers on the device, with the metadata that the kernels read."""

    def __init__(self, device: torch.device, dim_first: bool):
        self.states, self.dim_first = make_states(dim_first), dim_first
        self.placed = [state.copy(device) for state in self.states]
        random = np.random.default_rng(1)
        blocks = [random.permutation(NUM_BLOCKS)[: NUM_REQS * COLUMNS] for _ in range(2)]
        self.tables = [int32(b.reshape(NUM_REQS, COLUMNS)) for b in blocks]
        self._tables_on = [t.to(device) for t in self.tables]
        pairs = list(zip(self.placed, self.states, strict=True))
        sizes = [p.element_size() for p in self.placed]
        block_bytes = [p.stride(0) * p.element_size() for p in self.placed]
        row_bytes = [p.stride(1) * p.element_size() for p in self.placed]
        self.metadata = [
            int64([t.data_ptr() for t in self._tables_on], device),
            COLUMNS,
            int64([p.data_ptr() for p in self.placed], device),
            int64(block_bytes, device),
            int32(sizes, device),
            int64([p.stride(1) if s.width else p[0].numel() for p, s in pairs], device),
            int32([s.width for s in self.states], device),
            int32([s.group for s in self.states], device),
            int32([p.shape[1] if s.width and dim_first else 0 for p, s in pairs], device),
            int64(row_bytes, device),
        ]

    def move(self, request: int, source: int, target: int, bias: int) -> None:
        """Copies in the expected values."""
        for state in self.states:
            table = self.tables[state.group][request]
            to = state.values[table[target]]
            if not state.width:
                to.copy_(state.values[table[source + bias]].clone())
                continue
            window = state.values[table[source]].clone()
            if self.dim_first:
                to[:, : state.width - bias] = window[:, bias:]
            else:
                to[: state.width - bias] = window[bias:]

    def check(self) -> None:
        for state, placed in zip(self.states, self.placed, strict=True):
            assert_equal(placed, state.values)


LAYOUTS = pytest.mark.parametrize(
    ("dim_first", "tiles"), [(False, 1), (False, 4), (True, 4)], ids=str
)


@pytest.mark.checks(f"{MAMBA}:precopy_mamba_align_fused_kernel")
@LAYOUTS
@pytest.mark.parametrize("mapped", [True, False])
def test_copies_before_a_step(
    device: torch.device, dim_first: bool, tiles: int, mapped: bool
) -> None:
    layers = Layers(device, dim_first)
    source, target, bias = [2, -1, 3, 0, 1], [4, 1, 3, 1, 0], [2, 0, 1, 0, 1]
    mapping = [3, -1, 0, 2, 1, 4]
    grid = (len(mapping) if mapped else NUM_REQS, len(layers.states), tiles)
    precopy_mamba_align_fused_kernel[grid](
        int32(target, device),
        int32(source, device),
        int32(bias, device),
        *layers.metadata,
        int32(mapping, device) if mapped else None,
        grid[0],
        COPY_BLOCK_SIZE=256,
        CONV_STATE_DIM_FIRST=dim_first,
        HAS_IDX_MAPPING=mapped,
        TEMPORAL_TILES=tiles,
    )
    for request in (0, 3, 4):
        layers.move(request, source[request], target[request], bias[request])
    layers.check()


@pytest.mark.checks(f"{MAMBA}:postprocess_mamba_fused_kernel")
@LAYOUTS
@pytest.mark.parametrize("mapped", [True, False])
def test_copies_behind_a_step(
    device: torch.device, dim_first: bool, tiles: int, mapped: bool
) -> None:
    layers = Layers(device, dim_first)
    # Requests that end at a block's end, pass it, do not reach it, and stay in their own block.
    accepted, columns = [3, 4, 2, 4, 2], [3, 2, 1, 0, 1]
    after = [24, 18, 15, 10, 17]  # the tokens computed when the step is over
    scheduled, drafts = [5, 4, 3, 4, 3], [4, 3, 2, 3, 2]
    before = [
        a - n + 1 + d - s for a, n, d, s in zip(after, accepted, drafts, scheduled, strict=False)
    ]
    mapping = [3, 0, -1, 1, 4, 2]
    grid = (len(mapping) if mapped else NUM_REQS, len(layers.states), tiles)
    found = int32(accepted, device)
    postprocess_mamba_fused_kernel[grid](
        int32(accepted, device),
        int32(columns, device),
        int32(scheduled, device),
        int32(after if mapped else before, device),
        int32(drafts, device),
        *layers.metadata,
        found,
        int32(mapping, device) if mapped else None,
        grid[0],
        block_size=BLOCK,
        COPY_BLOCK_SIZE=256,
        CONV_STATE_DIM_FIRST=dim_first,
        HAS_IDX_MAPPING=mapped,
        PRECOMPUTED_NEW_COMPUTED=mapped,
        TEMPORAL_TILES=tiles,
    )
    moved = 0
    for request in range(NUM_REQS):
        start = after[request] - accepted[request] + 1
        boundary = after[request] // BLOCK * BLOCK
        if boundary < start:
            continue
        target, bias = boundary // BLOCK - 1, boundary - start
        layers.move(request, columns[request], target, bias)
        moved += 1
        if target == columns[request]:
            accepted[request] = 1
    assert moved == 4 and accepted.count(1) == 2
    layers.check()
    assert_equal(found, int32(accepted))


@pytest.mark.checks(f"{MAMBA}:batch_memcpy_kernel")
def test_batch_of_copies(device: torch.device) -> None:
    memory = torch.randint(0, 255, (20_000,), dtype=torch.uint8)
    found = memory.to(device, copy=True)
    # (from, to, bytes): odd addresses, nothing, and moves to the left within themselves.
    copies = [(0, 9000, 1), (17, 9101, 2049), (3000, 12_000, 0), (5003, 5000, 2500), (8, 15_000, 8)]
    copies.append((16_100, 16_000, 1024))
    base = found.data_ptr()
    batch_memcpy(
        torch.tensor([base + c[0] for c in copies], dtype=torch.uint64).to(device),
        torch.tensor([base + c[1] for c in copies], dtype=torch.uint64).to(device),
        int32([c[2] for c in copies], device),
    )
    expected = memory.clone()
    for source, target, size in copies:
        expected[target : target + size] = memory[source : source + size]
    assert_equal(found, expected)
