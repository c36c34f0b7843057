# SPDX-License-Identifier: Apache-2.0
"""Allowed tokens, logit biases, and stop tokens that may not come yet."""

import math

import pytest
import torch
from comparison import Rows, assert_close_rounded, assert_close_ulp, assert_equal, float32, int32
from torch import Tensor
from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias

ALLOWED = [[], [4, 0, 1020], [9], [6, 7], [], list(range(0, 1000, 2))]
BIASES = [
    {},
    {4: 2.5, 5: 100.0},
    {9: -100.0, 0: 1.0},
    {},
    {i: float(i) / 7 for i in range(64)},
    {2: 0.5},
]
STOPS = [[3, 8], [4], [], [6, 7], [1, 2, 1021], []]
MIN_LENGTHS = [10, 0, 9, 100, 51, 0]
# Only with a grammar are stop tokens given back to a row that has nothing else.
RESTORES = [0, 0, 0, 1, 1, 0]


def padded(lists: list[list], width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    values = torch.full((len(lists), width), 0, dtype=dtype)
    for row, items in enumerate(lists):
        values[row, : len(items)] = torch.tensor(items, dtype=dtype)
    return Rows(values, device, before=0, after=16).view


def expected_logits(
    logits: Tensor, mapping: list[int], positions: list[int], restore: bool
) -> Tensor:
    """In the precision of float64, with the dtype's rounding behind the biases."""
    result = logits.double()
    for row, state in enumerate(mapping):
        if ALLOWED[state]:
            kept = torch.full_like(result[row], -math.inf)
            kept[ALLOWED[state]] = result[row, ALLOWED[state]]
            result[row] = kept
        for token, bias in BIASES[state].items():
            result[row, token] += float(torch.tensor(bias, dtype=torch.float32))
        if STOPS[state] and positions[row] + 1 < MIN_LENGTHS[state]:
            before = result[row, STOPS[state]].clone()
            result[row, STOPS[state]] = -math.inf
            if restore and RESTORES[state] and (result[row] == -math.inf).all():
                result[row, STOPS[state]] = before
    return result


@pytest.mark.checks("vllm.v1.worker.gpu.sample.logit_bias:_bias_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "dtype", "restore"),
    [
        (1022, torch.float32, False),
        (8193, torch.float32, True),
        (1025, torch.bfloat16, True),
        (1025, torch.float16, False),
    ],
)
def test_bias(device: torch.device, vocab_size: int, dtype: torch.dtype, restore: bool) -> None:
    torch.manual_seed(1)
    mapping, positions = [3, 0, 1, 1, 2, 4, 4, 5, 0], [5, 8, 3, 4, 2, 49, 50, 7, 9]
    logits = torch.randn(len(mapping), vocab_size).to(dtype)
    rows = Rows(logits, device)
    apply_logit_bias(
        rows.view,
        int32(mapping, device),
        torch.tensor(positions).to(device),
        int32([len(a) for a in ALLOWED], device),
        padded(ALLOWED, 500, torch.int32, device),
        int32([len(b) for b in BIASES], device),
        padded([list(b) for b in BIASES], 64, torch.int32, device),
        padded([list(b.values()) for b in BIASES], 64, torch.float32, device),
        int32(MIN_LENGTHS, device),
        int32([len(s) for s in STOPS], device),
        int32(RESTORES, device),
        padded(STOPS, 3, torch.int32, device),
        check_all_masked_rows=restore,
    )
    expected = expected_logits(logits, mapping, positions, restore)
    found = rows.cpu()
    assert bool(torch.isinf(expected[0]).all()) is not restore
    if dtype == torch.float32:
        assert_close_ulp(found, expected, 1, magnitude=1.0)
    else:
        assert_close_rounded(found, expected.float())


@pytest.mark.checks("vllm.v1.worker.gpu.sample.logit_bias:_bias_kernel")
def test_stop_tokens_that_a_grammar_forbids_stay_masked(device: torch.device) -> None:
    logits = torch.full((2, 1024), -math.inf)
    logits[0, 7] = 1.5  # of the stop tokens 6 and 7 only this one was allowed
    logits[1, [6, 900]] = 2.0  # something else is left: nothing is given back
    rows = Rows(logits, device)
    none = torch.zeros(1, dtype=torch.int32, device=device)
    apply_logit_bias(
        rows.view,
        int32([0, 0], device),
        torch.tensor([3, 3]).to(device),
        none,
        torch.zeros(1, 4, dtype=torch.int32, device=device),
        none,
        torch.zeros(1, 4, dtype=torch.int32, device=device),
        float32([[0, 0, 0, 0]], device),
        int32([9], device),
        int32([2], device),
        int32([1], device),
        int32([[6, 7, 0, 0]], device),
        check_all_masked_rows=True,
    )
    logits[1, 6] = -math.inf
    assert_equal(rows.cpu(), logits)
