# SPDX-License-Identifier: Apache-2.0
"""Logits processors that divide or mask: temperature, min-p, grammars, bad words; NaN counts."""

import math

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
    offsets,
)
from torch import Tensor
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.bad_words import apply_bad_words
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
from vllm.v1.worker.gpu.sample.min_p import apply_min_p
from vllm.v1.worker.gpu.structured_outputs import _apply_grammar_bitmask_kernel

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_logits(rows: int, vocab_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(vocab_size)
    return (torch.randn(rows, vocab_size) * 4).to(dtype)


@pytest.mark.checks("vllm.v1.worker.gpu.sample.gumbel:_temperature_kernel")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 8193])
def test_temperature(device: torch.device, dtype: torch.dtype, vocab_size: int) -> None:
    logits = random_logits(6, vocab_size, dtype)
    logits[:, vocab_size // 2 + 1 :] = -math.inf
    logits[2, 0] = 3.0e38 if dtype == torch.float32 else 1.0
    temperatures = float32([0.0, 1.0, 0.7, 1e-5, 2.5])
    mapping = [2, 0, 1, 4, 2, 3]
    rows = Rows(logits, device)
    apply_temperature(rows.view, int32(mapping, device), temperatures.to(device))
    divisors = temperatures[mapping]
    divisors[divisors == 0] = 1
    expected = logits.double() / divisors.double()[:, None]
    untouched = divisors == 1
    found = rows.cpu()
    assert_equal(found[untouched], logits[untouched])
    if dtype == torch.float32:
        assert_close_ulp(found, expected.float(), 2)
    else:
        assert_close_rounded(found, expected)


@pytest.mark.checks("vllm.v1.worker.gpu.sample.min_p:_min_p_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(size, torch.float32) for size in (1, 1023, 49152)] + [(1025, dtype) for dtype in DTYPES],
)
def test_min_p(device: torch.device, vocab_size: int, dtype: torch.dtype) -> None:
    logits = random_logits(5, vocab_size, dtype)
    logits[3, ::7] = -math.inf
    min_p = float32([0.0, 0.05, 1.0, 1e-30])
    mapping = [3, 1, 0, 1, 2]
    rows = Rows(logits, device)
    apply_min_p(rows.view, int32(mapping, device), min_p.to(device))
    # Tokens less likely than min_p times the likeliest one.
    distance = logits.double() - logits.double().amax(dim=1, keepdim=True)
    threshold = min_p[mapping].double().log()[:, None]
    expected = logits.masked_fill(distance < threshold, -math.inf)
    close = (distance - threshold).abs() < 1e-6  # the kernel's threshold is rounded to float32
    assert close.sum() < 5
    found = rows.cpu()
    assert_equal(found[~close], expected[~close])
    assert_equal(found.amax(dim=1), logits.amax(dim=1))


@pytest.mark.checks("vllm.v1.worker.gpu.metrics.logits:_num_nans_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, torch.float32), (8192, torch.float32), (32003, torch.float32), (8193, torch.bfloat16)],
)
def test_num_nans(device: torch.device, vocab_size: int, dtype: torch.dtype) -> None:
    logits = random_logits(5, vocab_size, dtype)
    logits[1, ::3] = math.nan
    logits[2] = math.inf
    logits[3, -1] = -math.nan
    logits[4] = math.nan
    count = get_num_nans(Rows(logits, device).view)
    assert_equal(count, int32([0, math.ceil(vocab_size / 3), 0, 1, vocab_size]))


@pytest.mark.checks("vllm.v1.worker.gpu.structured_outputs:_apply_grammar_bitmask_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, torch.float32), (8191, torch.bfloat16), (32003, torch.float32), (8224, torch.float16)],
)
def test_grammar(device: torch.device, vocab_size: int, dtype: torch.dtype) -> None:
    num_logits, stride = [2, 1, 3], 4
    logits = random_logits(sum(num_logits), vocab_size, dtype)
    # (request, position) of each mask; the first request has no third position, nor the last a
    # fourth.
    masked = [(2, 0), (0, 1), (0, 2), (2, 3), (2, 2)]
    words = math.ceil(vocab_size / 32)
    random = np.random.default_rng(vocab_size)
    bitmask = random.integers(-(2**31), 2**31, (len(masked), words)).astype(np.int32)
    bitmask[0] = -1
    bitmask[4] = 0
    mask_rows = torch.from_numpy(bitmask).to(device)
    rows = Rows(logits, device)
    starts = offsets(num_logits)
    _apply_grammar_bitmask_kernel[(len(masked), math.ceil(vocab_size / 8192))](
        rows.view,
        rows.view.stride(0),
        int32([request * stride + position for request, position in masked], device),
        starts.to(device),
        mask_rows,
        mask_rows.stride(0),
        vocab_size,
        MASK_STRIDE=stride,
        BLOCK_SIZE=8192,
    )
    allowed = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    for (request, position), row in zip(masked, allowed, strict=True):
        if position < num_logits[request]:
            logits[starts[request] + position, torch.from_numpy(row == 0)] = -math.inf
    assert_equal(rows.cpu(), logits)


def forbidden(words: list[list[int]], output: list[int]) -> list[int]:
    """The tokens that would complete one of `words` behind `output`."""
    return [w[-1] for w in words if len(w) == 1 or output[-(len(w) - 1) :] == w[:-1]]


@pytest.mark.checks("vllm.v1.worker.gpu.sample.bad_words:_bad_words_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bad_words(device: torch.device, dtype: torch.dtype) -> None:
    vocab_size = 1025
    words = [[[5]], [], [[7, 8], [1, 2, 3, 4], [1024], [9, 9]], [[3, 3, 3]]]
    prompts = [[1, 2], [5], [7, 1, 2], [3, 3, 3, 3]]
    outputs = [[5, 5], [5], [1, 2, 7], [3]]
    # Sampled rows: requests 2 (three drafts behind its last token), 3, 0 and 1.
    drafts = {2: [1, 2, 3], 3: [3], 0: [], 1: []}
    logits = random_logits(sum(len(d) + 1 for d in drafts.values()), vocab_size, dtype)
    table = torch.full((4, 40), -1, dtype=torch.int32)
    flat, ends = torch.zeros(4, 16, dtype=torch.int32), torch.zeros(4, 6, dtype=torch.int32)
    for state in range(4):
        tokens = prompts[state] + outputs[state]
        table[state, : len(tokens)] = int32(tokens)
        joined = [token for word in words[state] for token in word]
        flat[state, : len(joined)] = int32(joined)
        ends[state, : len(words[state]) + 1] = offsets([len(w) for w in words[state]])
    expected = logits.clone()
    mapping, local, ids = [], [], []
    for state, tokens in drafts.items():
        for position in range(len(tokens) + 1):
            context = outputs[state] + tokens[:position]
            expected[len(mapping), forbidden(words[state], context)] = -math.inf
            mapping.append(state)
            local.append(position)
        ids += [outputs[state][-1], *tokens]
    rows = Rows(logits, device)
    apply_bad_words(
        rows.view,
        int32(mapping, device),
        Rows(flat, device).view,
        Rows(ends, device).view,
        int32([len(w) for w in words], device),
        Rows(table, device).view,
        int32([len(p) for p in prompts], device),
        int32([len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)], device),
        int32(ids, device),
        int32(local, device),
        max(len(w) for w in words),
    )
    assert (expected == -math.inf).sum() >= 8
    assert_equal(rows.cpu(), expected)
