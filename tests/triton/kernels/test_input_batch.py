# SPDX-License-Identifier: Apache-2.0
"""The inputs of a step: token ids, positions, lengths, and the state after sampling."""

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import (
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)

MODULE = "vllm.v1.worker.gpu.input_batch"
STATES = 6


def token_table(device: torch.device, width: int = 2200) -> Rows:
    values = np.random.default_rng(1).integers(0, 50_000, (STATES, width))
    return Rows(int32(values), device, before=0, after=8)


@pytest.mark.checks(f"{MODULE}:_prepare_prefill_inputs_kernel")
@pytest.mark.parametrize("lookahead", [1, 3])
def test_prefill_inputs(device: torch.device, lookahead: int) -> None:
    table = token_table(device)
    states, lengths = [3, 0, 5, 1], [1100, 7, 1, 1024]
    # The second request has all of its prompt; the third ends it, so it has no tokens to come.
    prefill = int32([7, 1200, 9, 1111, 9, 40])
    computed = int32([7, 100, 0, 9, 0, 39])
    ids = torch.full((sum(lengths) + 5,), -1, dtype=torch.int32)
    upcoming = torch.full((lookahead, STATES), -2, dtype=torch.int32)
    found_ids, found_upcoming = ids.to(device, copy=True), upcoming.to(device, copy=True)
    starts = offsets(lengths)
    prepare_prefill_inputs(
        found_ids,
        found_upcoming,
        int32(states, device),
        starts.to(device),
        table.view,
        prefill.to(device),
        computed.to(device),
    )
    tokens = table.cpu()
    for row, state in enumerate(states):
        done, total = int(computed[state]), int(prefill[state])
        if done >= total:
            continue
        end = done + lengths[row]
        ids[starts[row] : starts[row + 1]] = tokens[state, done:end]
        for step in range(lookahead):
            upcoming[step, state] = tokens[state, end + step] if end + step < total else 0
    assert_equal(found_ids, ids)
    assert_equal(found_upcoming, upcoming)


@pytest.mark.checks(f"{MODULE}:_prepare_pos_seq_lens_kernel")
@pytest.mark.parametrize("lengths", [[1, 1025, 3], [2048]], ids=str)
def test_positions_and_lengths(device: torch.device, lengths: list[int]) -> None:
    states = [4, 0, 2][: len(lengths)]
    computed = int32([1000, 1, 0, 2, 31_999, 5])
    positions = torch.full((sum(lengths) + 3,), -4, dtype=torch.int64)
    found, seq_lens = positions.to(device), torch.full((1500,), 9, dtype=torch.int32, device=device)
    prepare_pos_seq_lens(
        int32(states, device), offsets(lengths).to(device), computed.to(device), found, seq_lens
    )
    expected_lens = torch.zeros(1500, dtype=torch.int32)
    expected_lens[: len(lengths)] = computed[states] + int32(lengths)
    parts = [torch.arange(n) + computed[s] for s, n in zip(states, lengths, strict=True)]
    assert_equal(found, torch.cat([*parts, positions[-3:]]))
    assert_equal(seq_lens, expected_lens)


@pytest.mark.checks(f"{MODULE}:_combine_sampled_and_draft_tokens_kernel")
@pytest.mark.parametrize("bonus", [1, 0])
def test_combine_sampled_and_drafts(device: torch.device, bonus: int) -> None:
    states, queries, drafts = [2, 0, 5, 4], [4, 9, 3, 5], [3, 0, 2, 4]
    if not bonus:
        drafts = [3, 2, 2, 4]
    num_logits = [n + bonus for n in drafts]
    # The second request is in its prompt; the last has one prompt token among its logits.
    seq_lens, prefill = int32([30, 9, 100, 24]), int32([9, 0, 20, 0, 20, 90])
    sampled = int64([70, 71, 72, 73, 74, 75])
    draft_table = Rows(int64(np.arange(100, 100 + STATES * 5).reshape(STATES, 5)), device)
    ids = int32(np.arange(1000, 1000 + sum(queries)))
    found_ids, starts, cu_logits = ids.to(device, copy=True), offsets(queries), offsets(num_logits)
    indices = combine_sampled_and_draft_tokens(
        found_ids,
        int32(states, device),
        sampled.to(device),
        starts.to(device),
        seq_lens.to(device),
        prefill.to(device),
        draft_table.view,
        cu_logits.to(device),
        sum(num_logits),
        bonus,
    )
    expected_indices: list[int] = []
    for row, state in enumerate(states):
        end = int(starts[row + 1])
        expected_indices += range(end - num_logits[row], end)
        if seq_lens[row] <= prefill[state]:
            continue
        if bonus and seq_lens[row] - num_logits[row] >= prefill[state]:
            ids[end - num_logits[row]] = sampled[state]
        ids[end - drafts[row] : end] = draft_table.cpu()[state, : drafts[row]].int()
    assert_equal(indices, int64(expected_indices))
    assert_equal(found_ids, ids)


@pytest.mark.checks(f"{MODULE}:_get_num_sampled_and_rejected_kernel")
def test_num_sampled_and_rejected(device: torch.device) -> None:
    num_logits = [1, 4, 2, 6]
    sampled = int32([1, 2, 1, 6], device)
    found, rejected = get_num_sampled_and_rejected(
        sampled,
        int32([10, 20, 5, 40], device),
        offsets(num_logits).to(device),
        int32([3, 1, 0, 2], device),
        int32([6, 20, 8, 10], device),
    )
    assert found is sampled
    assert_equal(found, int32([1, 2, 0, 6]))  # the third request has prompt left: 5 of 6
    assert_equal(rejected, int32([0, 2, 0, 0]))


def expected_update(state: dict[str, Tensor], step: dict[str, list], counted: bool) -> None:
    for row, slot in enumerate(step["slots"]):
        if slot < 0:
            continue
        new = step["tokens"][row][: step["num_sampled"][row]]
        if new:
            state["last"][slot] = new[-1]
            begin = int(state["total"][slot])
            state["tokens"][slot, begin : begin + len(new)] = int32(new)
            state["total"][slot] += len(new)
        if counted:
            for token in new:
                state["counts"][slot, token] += 1
        state["computed"][slot] += step["queries"][row] - step["num_rejected"][row]


@pytest.mark.checks(f"{MODULE}:_post_update_kernel")
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("with_queries", [True, False], ids=["queries", "no queries"])
def test_post_update(device: torch.device, counted: bool, with_queries: bool) -> None:
    vocab_size = 1023
    step: dict[str, list] = {
        "slots": [4, -1, 0, 2],
        "tokens": [[7, 7, 9, 7], [1, 1, 1, 1], [1022, 0, 0, 0], [5, 6, 8, 2]],
        "num_sampled": [4, 3, 1, 0],
        "num_rejected": [0, 1, 2, 0],
        "queries": [4, 4, 3, 200] if with_queries else [0, 0, 0, 0],
    }
    state = {
        "computed": int32([50, 1, 90, 3, 20, 5]),
        "last": int64([1, 2, 3, 4, 5, 6]),
        "tokens": torch.zeros(STATES, 120, dtype=torch.int32),
        "total": int32([51, 2, 90, 4, 21, 6]),
        "counts": torch.ones(STATES, vocab_size, dtype=torch.int32),
    }
    counts = Rows(state["counts"], device)
    on_device = {name: t.to(device, copy=True) for name, t in state.items()}
    post_update(
        int32(step["slots"], device),
        on_device["computed"],
        on_device["last"],
        counts.view if counted else None,
        Rows(int64(step["tokens"]), device).view,
        int32(step["num_sampled"], device),
        int32(step["num_rejected"], device),
        offsets(step["queries"]).to(device) if with_queries else None,
        on_device["tokens"],
        on_device["total"],
    )
    expected_update(state, step, counted)
    for name in ("computed", "last", "tokens", "total"):
        assert_equal(on_device[name], state[name])
    assert_equal(counts.cpu(), state["counts"])


@pytest.mark.checks(f"{MODULE}:_post_update_num_computed_tokens_kernel")
def test_post_update_of_computed_tokens(device: torch.device) -> None:
    computed = int32([9, 8, 7, 6], device)
    post_update_num_computed_tokens(int32([3, 0], device), computed, offsets([5, 2]).to(device))
    assert_equal(computed, int32([11, 8, 7, 11]))


@pytest.mark.checks(f"{MODULE}:_expand_idx_mapping_kernel")
def test_expand_mapping(device: torch.device) -> None:
    counts, states = [3, 1, 5, 2], [9, 2, 2, 0]
    mapping, local = expand_idx_mapping(
        int32(states, device), sum(counts), offsets(counts).to(device), max(counts)
    )
    assert_equal(mapping, int32(np.repeat(states, counts)))
    assert_equal(local, int32(np.concatenate([np.arange(n) for n in counts])))
