# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction with several modules: windows of tokens, embeddings and hidden states."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.multi_module_mtp.speculator import (
    cache_inputs,
    pad_trailing_draft_slots,
    prepare_input_buffers,
    prepare_input_hidden_states_and_embeddings,
    update_draft_inputs,
)

MODULE = "vllm.v1.worker.gpu.spec_decode.multi_module_mtp.speculator"
MAX_REQS, MAX_TOKENS, STEPS, STATES = 9, 1500, 4, 6
LENGTHS = [5, 1, 1100, 5]
MAPPING = [4, 1, 0, 3]
REJECTED = [3, 0, 1, 4]
SAMPLED = [1, 1, 0, 1]
# Rejected tokens make room at the front, but for the one that the next token takes.
GAPS = [max(n - 1, 0) for n in REJECTED]


def made_buffers(device: torch.device) -> InputBuffers:
    made = InputBuffers(MAX_REQS, MAX_TOKENS, device)
    for tensor in (made.input_ids, made.positions, made.seq_lens):
        tensor.fill_(-3)
    made.query_start_loc.fill_(-3)
    made.query_start_loc[: len(LENGTHS) + 1] = offsets(LENGTHS).to(device)
    return made


@pytest.mark.checks(f"{MODULE}:_prepare_input_buffers_kernel")
def test_input_buffers(device: torch.device) -> None:
    random = np.random.default_rng(0)
    total, count = sum(LENGTHS), len(LENGTHS)
    ids, first = int32(random.integers(0, 9999, total)), [50, 7, 300, 20]
    positions = int64(
        np.concatenate([np.arange(f, f + n) for f, n in zip(first, LENGTHS, strict=True)])
    )
    cached = Rows(int32(np.arange(STATES * 3).reshape(STATES, 3) + 500), device)
    last_sampled = int64(np.arange(STATES) + 20_000)
    upcoming = int32(np.arange(STEPS * STATES).reshape(STEPS, STATES) + 30_000)
    overrides = Rows(torch.zeros(count, STEPS - 1, dtype=torch.int64), device)
    made = made_buffers(device)
    last_indices = torch.full((MAX_REQS,), -1, dtype=torch.int64, device=device)
    seq_lens = int32(np.add(first, LENGTHS))
    batch = SimpleNamespace(
        input_ids=ids.to(device),
        positions=positions.to(device),
        idx_mapping=int32(MAPPING, device),
        seq_lens=seq_lens.to(device),
    )
    prepare_input_buffers(
        count,
        batch,
        cached.view,
        int32(SAMPLED, device),
        int32(REJECTED, device),
        last_sampled.to(device),
        Rows(upcoming, device).view,
        overrides.view,
        made,
        last_indices,
        MAX_REQS,
        STEPS,
    )
    expected_ids = torch.full((MAX_TOKENS,), -3, dtype=torch.int32)
    expected_positions, expected_last = expected_ids.long(), torch.zeros(MAX_REQS).long()
    expected_overrides = torch.full((count, STEPS - 1), -1, dtype=torch.int64)
    starts = offsets(LENGTHS).tolist()
    for row, state in enumerate(MAPPING):
        begin, kept, gap = starts[row], LENGTHS[row] - REJECTED[row], GAPS[row]
        window = cached.cpu()[state, STEPS - 1 - gap :].tolist()
        window += ids[begin + 1 : begin + kept].tolist()
        last = begin + gap + kept - 1
        window.append(int((last_sampled if SAMPLED[row] else upcoming[0])[state]))
        expected_ids[begin : last + 1] = int32(window)
        expected_last[row] = last
        where = int(positions[begin]) - gap + torch.arange(gap + kept)
        expected_positions[begin : begin + gap + kept] = where
        if not SAMPLED[row]:
            expected_overrides[row] = upcoming[1:, state].long()
    assert_equal(made.input_ids, expected_ids)
    assert_equal(made.positions, expected_positions)
    assert_equal(last_indices, expected_last)
    assert_equal(overrides.cpu(), expected_overrides)
    lens = [int(n) - gap for n, gap in zip(seq_lens, GAPS, strict=True)]
    assert_equal(made.seq_lens, int32([*lens, *[0] * (MAX_REQS - count)]))
    padding = [total] * (MAX_REQS - count)
    assert_equal(made.query_start_loc, int32([*starts, *padding]))


@pytest.mark.checks(f"{MODULE}:_prepare_input_hidden_states_and_embeddings_kernel")
@pytest.mark.parametrize(
    ("hidden_size", "dtype", "with_embeddings"),
    [(300, torch.bfloat16, True), (64, torch.float32, False)],
)
def test_hidden_states(
    device: torch.device, hidden_size: int, dtype: torch.dtype, with_embeddings: bool
) -> None:
    torch.manual_seed(0)
    total = sum(LENGTHS)
    target = torch.randn(total, hidden_size).to(dtype)
    cached, cached_embeds = torch.randn(2, STATES, STEPS - 1, hidden_size).to(dtype)
    before, embeds = torch.zeros(2, total, hidden_size, dtype=dtype)
    hidden, inputs = Rows(before, device), Rows(embeds, device)
    prepare_input_hidden_states_and_embeddings(
        len(LENGTHS),
        max(LENGTHS),
        hidden.view,
        Rows(target, device).view,
        Rows(cached, device).view,
        inputs.view if with_embeddings else None,
        Rows(cached_embeds, device).view if with_embeddings else None,
        SimpleNamespace(idx_mapping=int32(MAPPING, device)),
        made_buffers(device),
        int32(REJECTED, device),
        STEPS,
    )
    starts = offsets(LENGTHS).tolist()
    for row, state in enumerate(MAPPING):
        begin, kept, gap = starts[row], LENGTHS[row] - REJECTED[row], GAPS[row]
        window = slice(STEPS - 1 - gap, STEPS - 1)
        before[begin : begin + gap] = cached[state, window]
        before[begin + gap : begin + gap + kept] = target[begin : begin + kept]
        if with_embeddings:
            embeds[begin : begin + gap] = cached_embeds[state, window]
    assert_equal(hidden.cpu(), before)
    assert_equal(inputs.cpu(), embeds)


@pytest.mark.checks(f"{MODULE}:_pad_trailing_draft_slots_kernel")
def test_padded_slots(device: torch.device) -> None:
    slots = torch.arange(3 * 1120).view(3, 1120)
    rows = Rows(slots, device)
    last = [2, 5, 700, 1109]
    pad_trailing_draft_slots(
        rows.view, offsets(LENGTHS).to(device), int64(last, device), len(LENGTHS)
    )
    for index, end in zip(last, offsets(LENGTHS)[1:], strict=True):
        slots[:, index + 1 : end] = -1
    assert_equal(rows.cpu(), slots)


def shifted(values: Tensor, begin: int, last: int, new: Tensor) -> None:
    values[begin:last] = values[begin + 1 : last + 1].clone()
    values[last] = new


@pytest.mark.checks(f"{MODULE}:_cache_inputs_kernel")
@pytest.mark.parametrize(
    ("hidden_size", "dtype", "with_embeddings"),
    [(1030, torch.bfloat16, True), (64, torch.float32, False)],
)
def test_cached_inputs(
    device: torch.device, hidden_size: int, dtype: torch.dtype, with_embeddings: bool
) -> None:
    torch.manual_seed(1)
    total, mapping = sum(LENGTHS), [4, 1, -1, 3]
    made = made_buffers(device)
    ids = int32(np.arange(total) + 40)
    made.input_ids[:total] = ids.to(device)
    hidden, embeds = torch.randn(2, total, hidden_size).to(dtype)
    held, held_embeds = torch.zeros(2, STATES, STEPS - 1, hidden_size, dtype=dtype)
    held_ids = torch.zeros(STATES, STEPS - 1, dtype=torch.int32)
    cache, cache_embeds, cache_ids = (Rows(t, device) for t in (held, held_embeds, held_ids))
    last = [3, 5, 900, 1109]
    cache_inputs(
        made,
        Rows(embeds, device).view if with_embeddings else None,
        Rows(hidden, device).view,
        cache_ids.view,
        cache_embeds.view if with_embeddings else None,
        cache.view,
        int64(last, device),
        int32(mapping, device),
        len(LENGTHS),
        STEPS,
        with_embeddings,
    )
    starts = offsets(LENGTHS).tolist()
    for row, state in enumerate(mapping):
        if state < 0:
            continue
        # The window's end is the last token; a short query fills only the end of it.
        kept = range(max(last[row] - STEPS + 2, starts[row]), last[row] + 1)
        for slot, index in enumerate(kept, STEPS - 1 - len(kept)):
            held_ids[state, slot] = ids[index]
            held[state, slot] = hidden[index]
            if with_embeddings:
                held_embeds[state, slot] = embeds[index]
    assert_equal(cache_ids.cpu(), held_ids)
    assert_equal(cache.cpu(), held)
    assert_equal(cache_embeds.cpu(), held_embeds)


@pytest.mark.checks(f"{MODULE}:_shift_input_ids_kernel", f"{MODULE}:_shift_input_embeds_kernel")
@pytest.mark.parametrize(
    ("hidden_size", "dtype"), [(300, torch.bfloat16), (256, torch.float32)], ids=str
)
def test_shift_in_place(device: torch.device, hidden_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    total, mapping, last = sum(LENGTHS), [4, -1, 0, 3], [3, 5, 1099, 1106]
    made = made_buffers(device)
    ids = int32(np.random.default_rng(1).integers(0, 999, total))
    made.input_ids[:total] = ids.to(device)
    drafts = int64([91, 92, 93, 94])
    embeds, draft_embeds = torch.randn(total, hidden_size).to(dtype), torch.randn(4, hidden_size)
    draft_embeds = draft_embeds.to(dtype)
    rows = Rows(embeds, device)
    update_draft_inputs(
        drafts.to(device),
        Rows(draft_embeds, device).view,
        made,
        rows.view,
        int64(last, device),
        int32(mapping, device),
        len(LENGTHS),
    )
    starts = offsets(LENGTHS).tolist()
    for row, state in enumerate(mapping):
        if state >= 0:
            shifted(ids, starts[row], last[row], drafts[row].int())
            shifted(embeds, starts[row], last[row], draft_embeds[row])
    assert_equal(made.input_ids[:total], ids)
    assert_equal(rows.cpu(), embeds)
