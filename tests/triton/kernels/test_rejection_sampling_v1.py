# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts in the first runner."""

import itertools

import numpy as np
import pytest
import torch
from comparison import assert_equal, chi_square_p_value, float32, int32, int64, offsets
from torch import Tensor
from vllm.v1.sample.rejection_sampler import (
    PLACEHOLDER_TOKEN_ID,
    _rejection_greedy_sample,
    _rejection_random_sample,
    _sample_recovered_tokens,
    expand_batch_to_tokens,
)

MODULE = "vllm.v1.sample.rejection_sampler"
COUNTS = [3, 0, 1, 4, 2, 3]
MAX_LEN = 5


def ends(counts: list[int], device: torch.device) -> Tensor:
    return offsets(counts)[1:].to(device)


def output(rows: int, device: torch.device) -> Tensor:
    return torch.full((rows, MAX_LEN + 1), PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=device)


def outputs_of(accepted: list[bool], drafts: list[int], others: list[int], bonus: int) -> list[int]:
    """The drafts up to the first that is not accepted, and the token that stands for that one."""
    for step, taken in enumerate(accepted):
        if not taken:
            return [*drafts[:step], others[step]]
    return [*drafts, bonus]


def split(values: list, counts: list[int]) -> list[list]:
    at = offsets(counts).tolist()
    return [values[begin:end] for begin, end in itertools.pairwise(at)]


@pytest.mark.checks(f"{MODULE}:rejection_greedy_sample_kernel")
@pytest.mark.parametrize("synthetic", [False, True])
@pytest.mark.parametrize("all_greedy", [False, True])
def test_greedy(device: torch.device, synthetic: bool, all_greedy: bool) -> None:
    total = sum(COUNTS)
    random = np.random.default_rng(synthetic)
    best = random.integers(0, 999, total).tolist()
    drafts = [token if index % 3 else -1 for index, token in enumerate(best)]
    drafts[1] = best[1] + 1
    uniform, rates = random.random(total), [0.9, 0.6, 0.8, 0.3]
    bonus = list(range(2000, 2006))
    greedy = [True, True, False, True, True, True]
    found = output(6, device)
    _rejection_greedy_sample(
        found,
        ends(COUNTS, device),
        int32(drafts, device),
        int64(best, device),
        int64(bonus, device)[:, None],
        None if all_greedy else torch.tensor(greedy).to(device),
        MAX_LEN,
        torch.from_numpy(uniform).to(device) if synthetic else None,
        float32(rates, device) if synthetic else None,
    )
    expected = output(6, torch.device("cpu"))
    rows = zip(*(split(v, COUNTS) for v in (drafts, best, uniform.tolist())), strict=True)
    for row, (draft, others, draws) in enumerate(rows):
        if not (all_greedy or greedy[row]):
            continue
        accepted = [token == other for token, other in zip(draft, others, strict=True)]
        if synthetic:
            accepted = [u < rates[i] and draft[i] >= 0 for i, u in enumerate(draws)]
        tokens = outputs_of(accepted, draft, others, bonus[row])
        expected[row, : len(tokens)] = int32(tokens)
    assert_equal(found, expected)


@pytest.mark.checks(f"{MODULE}:rejection_random_sample_kernel")
@pytest.mark.parametrize("vocab_size", [1, 1025])
@pytest.mark.parametrize(("with_probs", "synthetic"), [(True, False), (False, False), (True, True)])
def test_random(device: torch.device, vocab_size: int, with_probs: bool, synthetic: bool) -> None:
    total = sum(COUNTS)
    torch.manual_seed(vocab_size)
    target = torch.softmax(torch.randn(total, vocab_size), dim=1)
    proposal = torch.softmax(torch.randn(total, vocab_size), dim=1)
    drafts = torch.randint(0, vocab_size, (total,))
    drafts[3], drafts[8] = -1, 0
    proposal[8, 0] = 0.0  # can not have been drafted: rejected rather than divided by
    recovered = torch.randint(0, vocab_size, (total,))
    uniform = torch.rand(total, dtype=torch.float64)
    if not with_probs:
        uniform *= 2 / vocab_size
    rates, bonus = [0.9, 0.6, 0.8, 0.3], list(range(2000, 2006))
    greedy = [False, False, False, False, True, False]
    found = output(6, device)
    _rejection_random_sample(
        found,
        ends(COUNTS, device),
        drafts.int().to(device),
        proposal.to(device) if with_probs else None,
        target.to(device),
        int64(bonus, device)[:, None],
        recovered.int().to(device),
        uniform.to(device),
        torch.tensor(greedy).to(device),
        MAX_LEN,
        float32(rates, device) if synthetic else None,
    )
    expected = output(6, torch.device("cpu"))
    accepted = []
    for index, token in enumerate(drafts.tolist()):
        likely = proposal[index, token] if with_probs else torch.tensor(1.0)
        ratio = float(target[index, token] / likely) if likely > 0 else -1.0
        accepted.append(token >= 0 and ratio >= float(uniform[index]))
    rows = zip(
        *(split(v, COUNTS) for v in (accepted, drafts.tolist(), recovered.tolist())), strict=True
    )
    for row, (taken, draft, others) in enumerate(rows):
        if greedy[row]:
            continue
        if synthetic:
            draws = split(uniform.tolist(), COUNTS)[row]
            taken = [u < rates[i] and draft[i] >= 0 for i, u in enumerate(draws)]
        tokens = outputs_of(taken, draft, others, bonus[row])
        expected[row, : len(tokens)] = int32(tokens)
    assert_equal(found, expected)


@pytest.mark.checks(f"{MODULE}:expand_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64], ids=str)
def test_expand(device: torch.device, dtype: torch.dtype) -> None:
    values = torch.tensor([3, 0, 5, 0, 2**20, 7]).to(dtype)
    counts = [3, 1, 128, 2, 0, 1]
    found = expand_batch_to_tokens(values.to(device), ends(counts, device), sum(counts), 0, 1)
    values[values == 0] = 1
    assert_equal(found, values.repeat_interleave(torch.tensor(counts)))


def recover(
    device: torch.device,
    counts: list[int],
    drafts: Tensor,
    proposal: Tensor | None,
    target: Tensor,
    noise: Tensor,
) -> Tensor:
    found = torch.full((len(drafts),), -1, dtype=torch.int32, device=device)
    _sample_recovered_tokens(
        found,
        ends(counts, device),
        drafts.int().to(device),
        None if proposal is None else proposal.to(device),
        target.to(device),
        noise.to(device),
        max_spec_len=MAX_LEN,
    )
    return found.cpu()


@pytest.mark.checks(f"{MODULE}:sample_recovered_tokens_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "with_probs", "dtype"),
    [
        (1, True, torch.float32),
        (8193, True, torch.float64),
        (32003, False, torch.float32),
    ],
)
def test_recovered_tokens(
    device: torch.device, vocab_size: int, with_probs: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(vocab_size)
    total = sum(COUNTS)
    target = torch.softmax(torch.randn(total, vocab_size), dim=1)
    proposal = torch.softmax(torch.randn(total, vocab_size), dim=1)
    proposal[2] = target[2]  # nothing left: any token in range will do
    drafts = torch.randint(0, vocab_size, (total,))
    noise = torch.empty(len(COUNTS), vocab_size, dtype=dtype).exponential_().reciprocal()
    found = recover(device, COUNTS, drafts, proposal if with_probs else None, target, noise)
    rest = (target - proposal).clamp(min=0)
    if not with_probs:
        rest = target.scatter(1, drafts[:, None], 0.0)
    requests = np.repeat(np.arange(len(COUNTS)), COUNTS)
    scores = rest.to(dtype) * noise[requests]
    assert ((found >= 0) & (found < vocab_size)).all()
    assert_equal(scores.gather(1, found[:, None].long())[:, 0], scores.amax(dim=1))


@pytest.mark.checks(f"{MODULE}:sample_recovered_tokens_kernel")
def test_distribution_of_recovered_tokens(device: torch.device, draws: int) -> None:
    torch.manual_seed(3)
    target, proposal = torch.softmax(torch.randn(2, 11), dim=1)
    noise = torch.empty(draws, 11).exponential_().reciprocal()
    found = recover(
        device,
        [1] * draws,
        torch.zeros(draws),
        proposal.repeat(draws, 1),
        target.repeat(draws, 1),
        noise,
    )
    counts = torch.bincount(found, minlength=11)
    assert chi_square_p_value(counts, (target - proposal).clamp(min=0)) > 1e-4
