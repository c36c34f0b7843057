# SPDX-License-Identifier: Apache-2.0
"""The inputs of draft models that run behind the target, or apart from it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import (
    prepare_prefill_inputs as prepare_standalone_inputs,
)
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
    prepare_decode_inputs,
    prepare_prefill_inputs,
    update_draft_inputs,
)

DEPENDENT = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator"
STANDALONE = "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator"
MAX_REQS, MAX_TOKENS = 12, 3000


def buffers(device: torch.device) -> InputBuffers:
    """Buffers in which an earlier batch left something everywhere."""
    made = InputBuffers(MAX_REQS, MAX_TOKENS, device)
    for tensor in (made.input_ids, made.positions, made.query_start_loc, made.seq_lens):
        tensor.fill_(-3)
    return made


def make_batch(device: torch.device, lengths: list[int], states: list[int]) -> SimpleNamespace:
    random = np.random.default_rng(4)
    starts = random.integers(0, 900, len(lengths))
    positions = [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    return SimpleNamespace(
        num_reqs=len(lengths),
        num_tokens=sum(lengths),
        input_ids=int32(random.integers(0, 9999, sum(lengths)), device),
        positions=int64(np.concatenate(positions), device),
        idx_mapping=int32(states, device),
        query_start_loc=offsets(lengths).to(device),
        query_start_loc_np=offsets(lengths).numpy(),
        seq_lens=int32(starts + lengths, device),
    )


@pytest.mark.checks(f"{DEPENDENT}:_prepare_prefill_inputs_kernel")
@pytest.mark.parametrize("lengths", [[1, 1030, 6, 4], [5]], ids=["four requests", "one request"])
def test_prefill_inputs(device: torch.device, lengths: list[int]) -> None:
    count = len(lengths)
    states = [3, 0, 5, 1][:count]
    batch = make_batch(device, lengths, states)
    made = buffers(device)
    rejected, sampled = [0, 2, 3, 0][:count], [1, 1, 3, 0][:count]
    last_sampled, upcoming = int64(np.arange(6) + 20_000), int32(np.arange(6) + 30_000)
    last_indices = torch.full((MAX_REQS,), -1, dtype=torch.int64, device=device)
    step = torch.tensor(7).to(device)
    prepare_prefill_inputs(
        last_indices,
        step,
        made,
        batch,
        int32(sampled, device),
        int32(rejected, device),
        last_sampled.to(device),
        upcoming.to(device),
        MAX_REQS,
    )
    ids = torch.full((MAX_TOKENS,), -3, dtype=torch.int32)
    positions, expected_last = ids.long(), torch.zeros(MAX_REQS, dtype=torch.int64)
    target, target_positions = batch.input_ids.cpu(), batch.positions.cpu()
    starts = offsets(lengths)
    for row, state in enumerate(states):
        begin, end = int(starts[row]), int(starts[row + 1]) - rejected[row]
        ids[begin : end - 1] = target[begin + 1 : end]
        ids[end - 1] = (last_sampled if sampled[row] else upcoming)[state]
        positions[begin:end] = target_positions[begin:end]
        expected_last[row] = end - 1
    assert_equal(made.input_ids, ids)
    assert_equal(made.positions, positions)
    assert_equal(last_indices, expected_last)
    assert step.item() == 0
    padding = torch.full((MAX_REQS - count,), int(starts[-1]), dtype=torch.int32)
    assert_equal(made.query_start_loc, torch.cat([starts, padding]))
    assert_equal(made.seq_lens, torch.cat([batch.seq_lens.cpu(), padding * 0]))


@pytest.mark.checks(f"{DEPENDENT}:_prepare_decode_inputs_kernel")
@pytest.mark.parametrize("advance", [True, False])
def test_decode_inputs(device: torch.device, advance: bool) -> None:
    count, max_len = 5, 4096
    made = buffers(device)
    positions, lengths, rejected = [7, 4095, 4094, 0, 30], [9, 4096, 4096, 1, 33], [1, 0, 0, 0, 2]
    made.positions[:count] = int64(positions, device)
    drafts = Rows(int64(np.arange(count * 3).reshape(count, 3) + 50), device)
    sources = int64([4, 5, 6, 7, 8], device)
    prepare_decode_inputs(
        drafts.view,
        int32(lengths, device),
        int32(rejected, device),
        made,
        sources,
        max_len,
        MAX_REQS,
        advance,
    )
    assert_equal(made.input_ids[:count], int32(np.arange(count) * 3 + 50))
    assert_equal(sources, int64([5, 6, 7, 8, 9]))
    step = 1 if advance else 0
    assert_equal(made.positions[:count], int64(np.minimum(np.add(positions, step), 4095)))
    seq_lens = np.minimum(np.subtract(lengths, rejected) + step, max_len)
    assert_equal(made.seq_lens, int32([*seq_lens, *[0] * (MAX_REQS - count)]))
    starts = [*range(count), *[count] * (MAX_REQS + 1 - count)]
    assert_equal(made.query_start_loc, int32(starts))
    assert_equal(made.positions[count:], torch.full((MAX_TOKENS - count,), -3))


@pytest.mark.checks(f"{DEPENDENT}:_update_draft_inputs_kernel")
@pytest.mark.parametrize(
    ("step", "advance", "hidden_size", "dtype"),
    [(0, True, 1030, torch.bfloat16), (1, False, 64, torch.float32), (2, True, 64, torch.float16)],
)
def test_update_of_draft_inputs(
    device: torch.device, step: int, advance: bool, hidden_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    count, max_len = 4, 4096
    made = buffers(device)
    made.positions[:count] = int64([0, 4094, 4095, 9], device)
    made.seq_lens[:count] = int32([1, 4095, 4096, 10], device)
    drafts, hidden = int64([9, 8, 7, 6]), torch.randn(count, hidden_size).to(dtype)
    output = Rows(torch.zeros(count, 3, dtype=torch.int64), device)
    following = Rows(torch.zeros(count, hidden_size, dtype=dtype), device)
    sources = int64([40, 50, 60, 70], device)
    update_draft_inputs(
        drafts.to(device),
        torch.tensor(step).to(device),
        Rows(hidden, device).view,
        output.view,
        following.view,
        made,
        sources,
        count,
        max_len,
        3,
        advance,
    )
    expected_output = torch.zeros(count, 3, dtype=torch.int64)
    expected_output[:, step] = drafts
    assert_equal(output.cpu(), expected_output)
    last = step == 2
    moved = 0 if last or not advance else 1
    assert_equal(following.cpu(), torch.zeros_like(hidden) if last else hidden)
    assert_equal(made.input_ids[:count], torch.full((4,), -3).int() if last else drafts.int())
    assert_equal(sources, int64(np.add([40, 50, 60, 70], 0 if last else 1)))
    assert_equal(made.positions[:count], int64(np.minimum(np.add([0, 4094, 4095, 9], moved), 4095)))
    assert_equal(made.seq_lens[:count], int32(np.minimum(np.add([1, 4095, 4096, 10], moved), 4096)))


@pytest.mark.checks(f"{STANDALONE}:_prepare_prefill_inputs_kernel")
@pytest.mark.parametrize("lengths", [[3, 700, 1, 4], [2, 1]], ids=str)
def test_standalone_inputs(device: torch.device, lengths: list[int]) -> None:
    count, max_len = len(lengths), 1000
    states = [2, 4, 0, 5][:count]
    batch = make_batch(device, lengths, states)
    made = buffers(device)
    rejected = [2, 0, 0, 1][:count]
    last_sampled = int64(np.arange(6) + 20_000)
    ids = torch.full((MAX_TOKENS,), -1, dtype=torch.int32, device=device)
    positions = ids.long()
    last_indices = torch.full((MAX_REQS,), -1, dtype=torch.int64, device=device)
    total = prepare_standalone_inputs(
        made,
        batch,
        last_sampled.to(device),
        int64(rejected, device),
        ids,
        positions,
        last_indices,
        MAX_REQS,
        max_len,
    )
    assert total == sum(lengths) + count
    expected_ids = torch.full((MAX_TOKENS,), -1, dtype=torch.int32)
    expected_positions, expected_last = expected_ids.long(), []
    source, first = batch.input_ids.cpu(), batch.positions.cpu()
    starts = offsets([n + 1 for n in lengths])
    for row, state in enumerate(states):
        begin, end = int(starts[row]), int(starts[row + 1])
        at = int(batch.query_start_loc[row])
        valid = lengths[row] - rejected[row]
        expected_ids[begin:end] = 0
        expected_ids[begin : begin + valid] = source[at : at + valid]
        expected_ids[begin + valid] = last_sampled[state]
        expected_positions[begin:end] = (first[at] + torch.arange(end - begin)).clamp(max=999)
        expected_last.append(begin + valid)
    assert_equal(ids, expected_ids)
    assert_equal(positions, expected_positions)
    assert_equal(last_indices, int64([*expected_last, *[0] * (MAX_REQS - count)]))
    padding = torch.full((MAX_REQS - count,), int(starts[-1]), dtype=torch.int32)
    assert_equal(made.query_start_loc, torch.cat([starts, padding]))
    seq_lens = (batch.seq_lens.cpu() + 1).clamp(max=max_len)
    assert_equal(made.seq_lens, torch.cat([seq_lens, padding * 0]))
