# SPDX-License-Identifier: Apache-2.0
"""Repetition, frequency and presence penalties, and the counts that they are made of."""

import numpy as np
import pytest
import torch
from comparison import (
    Rows,
    assert_close_rounded,
    assert_close_ulp,
    assert_equal,
    float32,
    int32,
    int64,
)
from torch import Tensor
from vllm.v1.worker.gpu.sample.penalties import apply_penalties, bincount

PENALTIES = "vllm.v1.worker.gpu.sample.penalties:_penalties_kernel"
BINCOUNT = "vllm.v1.worker.gpu.sample.penalties:_bincount_kernel"

REPETITION = float32([1.0, 1.3, 1.0, 0.7, 1.0])
FREQUENCY = float32([0.0, 0.0, 0.25, -0.5, 0.0])
PRESENCE = float32([0.0, 0.0, 0.0, 1.5, -2.0])


def packed(mask: Tensor) -> Tensor:
    """int32 [rows, ceil(width / 32)] with the bits of bool [rows, width], lowest first."""
    rows, width = mask.shape
    bits = np.zeros((rows, -(-width // 32) * 32), dtype=np.uint8)
    bits[:, :width] = mask.numpy()
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


def reference(
    logits: Tensor, in_prompt: Tensor, counts: Tensor, mapping: list[int], drafts: list[list[int]]
) -> Tensor:
    result = logits.double()
    for row, (state, earlier) in enumerate(zip(mapping, drafts, strict=True)):
        seen = counts[state].double()
        for token in earlier:
            seen[token] += 1
        repeated = in_prompt[state] | (seen > 0)
        penalty = REPETITION[state].double()
        # Away from likely: what is positive shrinks and what is negative grows.
        scaled = torch.where(result[row] > 0, result[row] / penalty, result[row] * penalty)
        values = torch.where(repeated, scaled, result[row])
        result[row] = values - FREQUENCY[state] * seen - PRESENCE[state] * (seen > 0)
    return result


@pytest.mark.checks(PENALTIES)
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, torch.float32), (32003, torch.float32), (8193, torch.bfloat16), (1023, torch.float16)],
)
def test_penalties(device: torch.device, vocab_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    random = np.random.default_rng(2)
    # States 3, 1 and 2 have drafts, the others one row; 0 has no penalty at all.
    mapping = [3, 3, 3, 0, 1, 1, 4, 2, 2]
    local = [0, 1, 2, 0, 0, 1, 0, 0, 1]
    ids = random.integers(0, vocab_size, len(mapping))
    ids[2] = ids[1]  # the same token drafted twice
    drafts = [list(ids[row - local[row] + 1 : row + 1]) for row in range(len(mapping))]
    in_prompt = torch.rand(5, vocab_size) < 0.3
    counts = (torch.rand(5, vocab_size) * 1.4).int() * torch.randint(1, 40, (5, vocab_size))
    counts = counts.int()
    logits = (torch.randn(len(mapping), vocab_size) * 5).to(dtype)
    rows = Rows(logits, device)
    apply_penalties(
        rows.view,
        int32(mapping, device),
        int32(ids, device),
        int32(local, device),
        REPETITION.to(device),
        FREQUENCY.to(device),
        PRESENCE.to(device),
        Rows(packed(in_prompt), device, after=2).view,
        Rows(counts, device).view,
    )
    expected = reference(logits, in_prompt, counts, mapping, drafts)
    found = rows.cpu()
    assert_equal(found[3], logits[3])
    if dtype == torch.float32:
        assert_close_ulp(found, expected, 4, magnitude=20.0)
    else:
        assert_close_rounded(found, expected, 4, magnitude=20.0)


@pytest.mark.checks(BINCOUNT)
@pytest.mark.parametrize("vocab_size", [1, 1025, 49152])
def test_bincount(device: torch.device, vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    prompt, prefill = [1025, 1, 2048, 700, 3, 5], [1030, 1, 2049, 2500, 3, 9]
    tokens = random.integers(0, vocab_size, (6, 2600))
    tokens[0, :200] = tokens[0, 0]  # many programs and lanes at one address
    tokens[3, 800:2400] = tokens[3, 900]
    states = [3, 0, 4, 2]
    words = -(-vocab_size // 32)
    mask = Rows(int32(random.integers(0, 2**31, (6, words))), device)
    counts = Rows(int32(random.integers(0, 9, (6, vocab_size))), device)
    expected_mask, expected_counts = mask.cpu(), counts.cpu()
    bincount(
        int64(states, device),
        Rows(int32(tokens), device).view,
        int32(prompt, device),
        int32(prefill, device),
        mask.view,
        counts.view,
        max(prefill),
    )
    for state in states:
        present = torch.zeros(1, vocab_size, dtype=torch.bool)
        present[0, tokens[state, : prompt[state]]] = True
        expected_mask[state] = packed(present)[0]
        generated = tokens[state, prompt[state] : prefill[state]]
        expected_counts[state] = int32(np.bincount(generated, minlength=vocab_size))
    assert_equal(mask.cpu(), expected_mask)
    assert_equal(counts.cpu(), expected_counts)
