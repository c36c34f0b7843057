# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts in the second runner, replayed with the same random numbers.

The reference follows the papers in probabilities and float64: speculative sampling (Leviathan et
al., 2023), and block verification (Sun et al., 2024), which accepts the longest prefix of the
block whose own test succeeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, chi_square_p_value, float32, int32, int64, offsets
from random_reference import gumbel_noise, triton_rand, watermark_uniform
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import (
    _flatten_sampled_kernel,
    gather_draft_sampled,
)
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
SAMPLER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
STANDARD = [
    f"{UTILS}:{name}"
    for name in (
        "_compute_local_logits_stats_kernel",
        "_rejection_kernel",
        "_resample_kernel",
        "_insert_resampled_kernel",
    )
]
CUMULATIVE = f"{UTILS}:_compute_cumulative_log_p_kernel"
RESIDUAL = f"{UTILS}:_compute_local_residual_mass_kernel"

STEPS = 4
KEY = 0xC0FFEE_1234


@dataclass
class Batch:
    """Requests with their drafts; `target` [logits, vocab] has the temperature applied."""

    states: list[int]
    drafts: list[list[int]]
    target: Tensor
    draft_logits: Tensor | None  # [states, STEPS, vocab], before the temperature
    temperatures: Tensor
    seeds: Tensor
    positions: list[int]
    num_residual: int = 0  # how many tokens a replay found to come from a residual distribution

    @property
    def num_logits(self) -> list[int]:
        return [len(draft) + 1 for draft in self.drafts]


def make_batch(vocab_size: int, with_draft_logits: bool, dtype: torch.dtype) -> Batch:
    torch.manual_seed(vocab_size + with_draft_logits)
    states = [3, 0, 5, 1, 4, 2, 6, 7]
    drafts = [[1, 2, 3, 4], [0], [], [5, 5, -1, 2], [3, 1], [-1, 4], [6, 0, 2, 2], [2, 3, 1, 0]]
    drafts = [[min(token, vocab_size - 1) for token in draft] for draft in drafts]
    temperatures = float32([0.0, 0.8, 1.0, 1.3, 0.0, 1.0, 0.6, 1.0])
    draft_logits = torch.randn(len(states), STEPS, vocab_size).to(dtype)
    target = []
    for state, draft in zip(states, drafts, strict=True):
        for step in range(len(draft) + 1):
            # Near to the draft's distribution, so that some of it is accepted.
            row = torch.randn(vocab_size) * 0.5
            row += draft_logits[state, min(step, STEPS - 1)].float()
            for token in draft[step : step + 1]:
                # Likely to be accepted at even steps.
                row[token] += (-2.0 if step % 2 else 2.0) if with_draft_logits else 5.0
            target.append(row / (float(temperatures[state]) or 1.0))
    # The likeliest tokens for greedy request 0 to accept, and 4 to reject from its second.
    target[5][drafts[1][0]] = 20.0
    return Batch(
        states,
        drafts,
        torch.stack(target).to(dtype),
        draft_logits if with_draft_logits else None,
        temperatures,
        int64(np.arange(8) * 1_000_003 - 5),
        np.random.default_rng(0).integers(0, 10_000, len(target)).tolist(),
    )


def run(batch: Batch, device: torch.device, **options: object) -> tuple[Tensor, Tensor]:
    num_logits = batch.num_logits
    ids = [token for draft in batch.drafts for token in (77, *draft)]
    sampled, count = rejection_sample(
        Rows(batch.target, device).view,
        None if batch.draft_logits is None else Rows(batch.draft_logits, device).view,
        int32(ids, device),
        offsets(num_logits).to(device),
        int64(batch.positions, device),
        int32(batch.states, device),
        int32(np.repeat(batch.states, num_logits), device),
        int32(np.concatenate([np.arange(n) for n in num_logits]), device),
        batch.temperatures.to(device),
        batch.seeds.to(device),
        STEPS,
        **options,  # type: ignore[arg-type]
    )
    return sampled.cpu(), count.cpu()


def standard_length(p: Tensor, q: Tensor, draft: list[int], uniform: list[float]) -> int:
    for step, token in enumerate(draft):
        if token < 0 or p[step, token] <= uniform[step] * q[step, token]:
            return step
    return len(draft)


def joint_ratios(p: Tensor, q: Tensor, draft: list[int]) -> list[float]:
    """1, and behind each token the ratio of the prefix's probabilities, at most 1 at each step."""
    ratios = [1.0]
    for step, token in enumerate(draft):
        ratios.append(min(ratios[-1] * float(p[step, token] / q[step, token]), 1.0))
    return ratios


def block_length(p: Tensor, q: Tensor, draft: list[int], uniform: list[float]) -> int:
    draft = draft[: draft.index(-1)] if -1 in draft else draft
    ratios, length = joint_ratios(p, q, draft), 0
    for step in range(len(draft)):
        ratio = ratios[step + 1]
        threshold = ratio
        if step + 1 < len(draft):
            mass = float((ratio * p[step + 1] - q[step + 1]).clamp(min=0).sum())
            threshold = mass / (mass + 1 - ratio) if mass + 1 - ratio > 0 else 1.0
        if uniform[step] <= threshold:
            length = step + 1
    return length


def check_replay(
    batch: Batch,
    found: tuple[Tensor, Tensor],
    block: bool = False,
    use_fp64: bool = False,
    watermarked: dict[int, list[int]] | None = None,
) -> list[int]:
    """Checks every token of `found`, and returns how many drafts each request had accepted.

    `watermarked` maps rows of logits whose resampling is keyed to their contexts.
    """
    sampled, count = found
    starts, vocab_size = offsets(batch.num_logits), batch.target.shape[1]
    lengths = []
    for request, (state, draft) in enumerate(zip(batch.states, batch.drafts, strict=True)):
        first, seed = int(starts[request]), int(batch.seeds[state])
        temperature = float(batch.temperatures[state])
        target = batch.target[first : first + len(draft) + 1].double()
        if temperature == 0:
            best = target.argmax(dim=1).tolist()
            length = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
            assert sampled[request, : length + 1].tolist() == [*draft[:length], best[length]]
            assert count[request] == length + 1
            lengths.append(length)
            continue
        p = torch.softmax(target, dim=1)
        if batch.draft_logits is None:
            q = torch.zeros(len(draft), vocab_size, dtype=torch.float64)
            for step, token in enumerate(draft):
                q[step, max(token, 0)] = 1.0
        else:
            scaled = batch.draft_logits[state, : len(draft)].double() / temperature
            q = torch.softmax(scaled, dim=1)
        uniform = [max(triton_rand(seed, pos), 4.6566127e-10) for pos in batch.positions[first:]]
        length = (block_length if block else standard_length)(p, q, draft, uniform)
        assert sampled[request, :length].tolist() == draft[:length]
        assert count[request] == length + 1
        lengths.append(length)
        weights = p[length]
        if length < len(draft) and draft[length] >= 0:
            scale = joint_ratios(p, q, draft[:length])[-1] if block else 1.0
            weights = (scale * p[length] - q[length]).clamp(min=0)
            batch.num_residual += 1
            if batch.draft_logits is None:
                weights = p[length].clone()
                weights[draft[length]] = 0
        row = first + length
        if watermarked is not None and row in watermarked:
            noise = -np.log(-np.log(watermark_uniform(watermarked[row], vocab_size, KEY)))
        else:
            noise = gumbel_noise(seed, batch.positions[row], vocab_size, use_fp64)
        scores = weights.log().numpy() + noise
        # The best token, or one that rounding may put before it.
        assert scores[int(sampled[request, length])] >= scores.max() - 1e-4
    return lengths


@pytest.mark.checks(*STANDARD)
@pytest.mark.parametrize(
    ("vocab_size", "with_draft_logits", "dtype", "use_fp64"),
    [
        (7, True, torch.float32, False),
        (1025, False, torch.float32, True),
        (8195, True, torch.float32, True),
        (1100, True, torch.bfloat16, False),
    ],
)
def test_speculative_sampling(
    device: torch.device,
    vocab_size: int,
    with_draft_logits: bool,
    dtype: torch.dtype,
    use_fp64: bool,
) -> None:
    batch = make_batch(vocab_size, with_draft_logits, dtype)
    found = run(batch, device, use_fp64=use_fp64)
    lengths = check_replay(batch, found, use_fp64=use_fp64)
    assert sum(lengths) > 3 and lengths[1] == 1 and batch.num_residual > 1


@pytest.mark.checks(*STANDARD, CUMULATIVE)
@pytest.mark.parametrize(
    ("vocab_size", "with_draft_logits"),
    [
        pytest.param(9, True, marks=pytest.mark.checks(RESIDUAL)),
        pytest.param(8195, True, marks=pytest.mark.checks(RESIDUAL)),
        (1025, False),
    ],
)
def test_block_verification(device: torch.device, vocab_size: int, with_draft_logits: bool) -> None:
    batch = make_batch(vocab_size, with_draft_logits, torch.float32)
    found = run(batch, device, use_block_verification=True)
    lengths = check_replay(batch, found, block=True)
    assert sum(lengths) > 3 and batch.num_residual > 1


@pytest.mark.checks(f"{UTILS}:_rejection_kernel")
def test_synthetic_acceptance(device: torch.device) -> None:
    batch = make_batch(1025, True, torch.float32)
    rates = float32([0.9, 0.5, 0.7, 0.0])
    sampled, count = run(batch, device, synthetic_conditional_rates=rates.to(device))
    starts = offsets(batch.num_logits)
    for request, (state, draft) in enumerate(zip(batch.states, batch.drafts, strict=True)):
        length = 0
        for step, token in enumerate(draft):
            uniform = triton_rand(
                int(batch.seeds[state]), batch.positions[int(starts[request]) + step]
            )
            if token < 0 or uniform >= rates[step]:
                break
            length += 1
        assert count[request] == length + 1
        assert sampled[request, :length].tolist() == draft[:length]
    assert 0 < count.sum() - len(count) < sum(len(d) for d in batch.drafts)


@pytest.mark.checks(*STANDARD)
@pytest.mark.parametrize("deduplicated", [False, True])
def test_watermarked_resampling(device: torch.device, deduplicated: bool) -> None:
    batch = make_batch(1027, True, torch.float32)
    owners = np.repeat(batch.states, batch.num_logits)
    contexts = np.random.default_rng(3).integers(-1, 999, (len(owners), 5))
    enabled = [state % 2 == 0 or state == 5 for state in range(8)]
    skip = np.arange(len(owners)) % 3 == 0
    found = run(
        batch,
        device,
        contexts=Rows(int32(contexts), device).view,
        watermarking=torch.tensor(enabled).to(device),
        watermarking_skip_mask=torch.from_numpy(skip).to(device) if deduplicated else None,
        watermark_key=KEY,
    )
    watermarked = {
        row: contexts[row].tolist()
        for row, state in enumerate(owners)
        if enabled[state] and not (deduplicated and skip[row])
    }
    check_replay(batch, found, watermarked=watermarked)


def test_nan_logits_stay_in_range(device: torch.device) -> None:
    batch = make_batch(1100, False, torch.float32)
    batch.target[:] = math.nan
    sampled, count = run(batch, device)
    for request in range(len(batch.states)):
        tokens = sampled[request, : count[request]]
        assert ((tokens >= 0) & (tokens < 2048)).all()


@pytest.mark.checks(*STANDARD)
@pytest.mark.parametrize("block", [False, True], ids=["speculative", "block"])
def test_output_has_the_target_distribution(device: torch.device, draws: int, block: bool) -> None:
    """Whatever the drafts: here they come from another distribution, which nothing shows."""
    vocab_size, draws = 6, draws // 5
    torch.manual_seed(11)
    random = np.random.default_rng(11)
    target, proposal = torch.randn(3, vocab_size), torch.randn(STEPS, vocab_size)
    q = torch.softmax(proposal.double(), dim=1).numpy()
    drafts = [[int(random.choice(vocab_size, p=q[i])) for i in range(2)] for _ in range(draws)]
    batch = Batch(
        [0] * draws,
        drafts,
        target.repeat(draws, 1),
        proposal[None],
        float32([1.0]),
        int64([77]),
        list(range(3 * draws)),
    )
    sampled, count = run(batch, device, use_block_verification=block)
    p = torch.softmax(target.double(), dim=1)
    first = torch.bincount(sampled[:, 0], minlength=vocab_size)
    assert chi_square_p_value(first, p[0]) > 1e-4
    # And the second tokens of those that got so far, given how they got there.
    both = count == 3
    assert both.sum() > draws // 10
    bonus = torch.bincount(sampled[both, 2], minlength=vocab_size)
    assert chi_square_p_value(bonus, p[2]) > 1e-4


@pytest.mark.checks(f"{SAMPLER}:_flatten_sampled_kernel")
def test_flatten_sampled(device: torch.device) -> None:
    sampled, counts, lengths = int64(np.arange(20).reshape(4, 5)), [3, 1, 0, 5], [4, 1, 2, 5]
    flat = torch.full((12,), -1, dtype=torch.int64)
    found = flat.to(device, copy=True)
    rows = Rows(sampled, device).view
    _flatten_sampled_kernel[(4,)](
        found, rows, rows.stride(0), int32(counts, device), offsets(lengths).to(device)
    )
    for row, (start, count) in enumerate(zip(offsets(lengths), counts, strict=False)):
        flat[start : start + count] = sampled[row, :count]
    assert_equal(found, flat)


@pytest.mark.checks(f"{SAMPLER}:_gather_draft_sampled_kernel")
def test_gather_drafts(device: torch.device) -> None:
    random = np.random.default_rng(2)
    count, tokens = 1100, 3000
    ids, positions = int32(random.integers(0, 2**17, tokens)), int64(random.permutation(tokens))
    indices = int64(np.sort(random.choice(tokens, count, replace=False)))
    states, local = random.integers(0, 5, count), random.integers(0, 4, count)
    prefill = int32([0, 100, 1500, 2999, 5000])
    found, found_positions = gather_draft_sampled(
        ids.to(device),
        positions.to(device),
        indices.to(device),
        int32(states, device),
        int32(local, device),
        prefill.to(device),
    )
    at = positions[indices]
    in_prompt = (int64(local) > 0) & (at - int64(local) < prefill[states])
    assert_equal(found, ids[indices].masked_fill(in_prompt, -1))
    assert_equal(found_positions, at)
