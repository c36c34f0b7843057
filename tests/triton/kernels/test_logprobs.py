# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of chosen tokens, ranks, and which tokens are reported."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_close_ulp, assert_equal, int32, int64, offsets
from torch import Tensor
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs, compute_topk_scores
from vllm.v1.worker.gpu.sample.prompt_logprob import get_prompt_logprobs_token_ids

SOFTMAX = "vllm.v1.worker.gpu.sample.logprob:_topk_log_softmax_kernel"
RANKS = "vllm.v1.worker.gpu.sample.logprob:_ranks_kernel"
FILL = "vllm.v1.worker.gpu.sample.logprob:_fill_logprob_token_ids_kernel"
PROMPT = "vllm.v1.worker.gpu.sample.prompt_logprob:_prompt_logprobs_token_ids_kernel"


def random_logits(rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(vocab_size)
    return (torch.randn(rows, vocab_size) * 3).to(dtype)


def log_probabilities(logits: Tensor, token_ids: Tensor) -> Tensor:
    return torch.log_softmax(logits.double(), dim=1).gather(1, token_ids)


@pytest.mark.checks(SOFTMAX)
@pytest.mark.parametrize(
    ("vocab_size", "columns", "dtype"),
    [
        (1, 1, torch.float32),
        (1025, 1026, torch.float32),
        (49152, 5, torch.float32),
        (32003, 1, torch.bfloat16),
        (1023, 3, torch.float16),
    ],
)
def test_log_softmax(
    device: torch.device, vocab_size: int, columns: int, dtype: torch.dtype
) -> None:
    logits = random_logits(3, vocab_size, dtype)
    logits[2] *= 4
    if vocab_size > 1:
        logits[1, ::2] = -math.inf
    ids = torch.randint(0, vocab_size, (3, columns))
    ids[0, -1], ids[1, 0] = vocab_size - 1, 0
    found = compute_token_logprobs(Rows(logits, device).view, Rows(ids, device).view)
    assert_close_ulp(found, log_probabilities(logits, ids), 4, magnitude=32.0)


@pytest.mark.checks(SOFTMAX)
def test_log_softmax_keeps_extremes(device: torch.device) -> None:
    logits = torch.full((3, 1500), -math.inf)
    logits[0, 1400] = -3.0e38  # alone: certain
    logits[1, [2, 3]] = 3.0e38
    logits[2] = torch.linspace(-1e4, 1e4, 1500)
    ids = int64([[1400, 0], [2, 3], [1499, 0]])
    found = compute_token_logprobs(logits.to(device), ids.to(device))
    wanted = log_probabilities(logits, ids)
    assert wanted[0].tolist() == [0, -math.inf]
    assert_close_ulp(found, wanted, 4, magnitude=1.0)


@pytest.mark.checks(SOFTMAX, RANKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ranks(device: torch.device, dtype: torch.dtype) -> None:
    logits = random_logits(5, 8193, dtype)
    logits[3] = 1.0  # all equal: the worst of the tied ranks
    logits[4, 1000:] = -math.inf
    chosen = int64([8192, int(logits[1].argmax()), int(logits[2].argmin()), 17, 999])
    scores = compute_topk_scores(Rows(logits, device).view, 4, chosen.to(device))
    at = logits.gather(1, chosen[:, None])
    ranks = (logits >= at).sum(dim=1)
    assert ranks[1] == 1 and ranks[2] == 8193 and ranks[3] == 8193
    assert_equal(scores.selected_token_ranks, ranks)
    ids = scores.logprob_token_ids.cpu()
    assert_equal(ids[:, 0], chosen)
    assert_equal(logits.gather(1, ids[:, 1:]), torch.topk(logits, 4).values)
    assert_close_ulp(scores.logprobs, log_probabilities(logits, ids), 4, magnitude=16.0)


@pytest.mark.checks(FILL, SOFTMAX, RANKS)
@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_requested_token_ids(device: torch.device, num_logprobs: int) -> None:
    logits = random_logits(4, 1025, torch.float32)
    chosen, mapping = int64([9, 1024, 0, 500]), [2, 0, 2, 1]
    custom = [[], [7, 7, 1024, 3, 8], [100]]
    table = torch.zeros(3, 8, dtype=torch.int32)
    for row, tokens in enumerate(custom):
        table[row, : len(tokens)] = int32(tokens)
    state = SimpleNamespace(
        num_token_ids=SimpleNamespace(gpu=int32([len(c) for c in custom], device)),
        token_ids=SimpleNamespace(gpu=Rows(table, device, before=0).view),
    )
    scores = compute_topk_scores(
        logits.to(device),
        num_logprobs,
        chosen.to(device),
        logprob_token_ids_state=state,
        expanded_idx_mapping=int32(mapping, device),
        max_per_req_token_ids=5,
    )
    ids = torch.zeros(4, 6, dtype=torch.int64)
    valid = torch.zeros(4, 6, dtype=torch.bool)
    for row, slot in enumerate(mapping):
        top = torch.topk(logits[row], num_logprobs).indices.tolist()
        reported = [int(chosen[row]), *(custom[slot] or top)]
        ids[row, : len(reported)] = int64(reported)
        valid[row, : len(reported)] = True
    assert_equal(scores.logprob_token_ids, ids)
    expected = log_probabilities(logits, ids).masked_fill(~valid, -math.inf)
    assert_close_ulp(scores.logprobs, expected, 4, magnitude=16.0)
    assert_equal(scores.selected_token_ranks, (logits >= logits[range(4), chosen][:, None]).sum(1))


@pytest.mark.checks(PROMPT)
def test_prompt_targets(device: torch.device) -> None:
    lengths, states, computed = [1025, 1, 4], [1, 3, 0], int32([6, 500, 0, 2])
    table = int32(np.random.default_rng(0).integers(0, 49152, (4, 2000)))
    found = get_prompt_logprobs_token_ids(
        sum(lengths),
        offsets(lengths).to(device),
        int32(states, device),
        computed.to(device),
        Rows(table, device).view,
    )
    # A token's hidden state predicts the next one.
    parts = [
        table[s, computed[s] + 1 : computed[s] + 1 + n]
        for s, n in zip(states, lengths, strict=True)
    ]
    assert_equal(found, torch.cat(parts).long())
