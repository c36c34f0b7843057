# SPDX-License-Identifier: Apache-2.0
"""Watermarked sampling: Philox 4x32-10, draws keyed by a context, and contexts that came before."""

import math

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, chi_square_p_value, float32, int32, int64
from random_reference import philox, watermark_uniform
from torch import Tensor
from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample.watermark import (
    _philox4x32_10,
    _repeated_context_mask_kernel,
    _uint32_to_uniform,
    philox_gumbel_sample,
)

SAMPLE = "vllm.v1.worker.gpu.sample.watermark:_philox_gumbel_kernel"
MASK = "vllm.v1.worker.gpu.sample.watermark:_repeated_context_mask_kernel"
KEY = 0x1BD1_1BDA_A9FC_1A22


@triton.jit
def _philox_kernel(words_ptr, uniform_ptr, counters_ptr, keys_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    c0 = tl.load(counters_ptr + at).to(tl.uint32)
    c1 = tl.load(counters_ptr + BLOCK + at).to(tl.uint32)
    c2 = tl.load(counters_ptr + 2 * BLOCK + at).to(tl.uint32)
    c3 = tl.load(counters_ptr + 3 * BLOCK + at).to(tl.uint32)
    k0 = tl.load(keys_ptr + at).to(tl.uint32)
    k1 = tl.load(keys_ptr + BLOCK + at).to(tl.uint32)
    o0, o1, o2, o3 = _philox4x32_10(c0, c1, c2, c3, k0, k1)
    tl.store(words_ptr + at, o0.to(tl.int64))
    tl.store(words_ptr + BLOCK + at, o1.to(tl.int64))
    tl.store(words_ptr + 2 * BLOCK + at, o2.to(tl.int64))
    tl.store(words_ptr + 3 * BLOCK + at, o3.to(tl.int64))
    tl.store(uniform_ptr + at, _uint32_to_uniform(c0))


def test_philox_words(device: torch.device) -> None:
    random = np.random.default_rng(0)
    counters, keys = random.integers(0, 2**32, (4, 64)), random.integers(0, 2**32, (2, 64))
    # The published known answers, and the ends of the uniform numbers.
    counters[:, :3] = np.array(
        [[0] * 4, [0xFFFFFFFF] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    ).T
    keys[:, :3] = np.array([[0, 0], [0xFFFFFFFF] * 2, [0xA4093822, 0x299F31D0]]).T
    words = torch.zeros(4, 64, dtype=torch.int64, device=device)
    uniform = torch.zeros(64, device=device)
    _philox_kernel[(1,)](words, uniform, int64(counters, device), int64(keys, device), BLOCK=64)
    answers = [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ]
    assert_equal(words[:, :3].T, int64(answers))
    columns = [philox(counters[:, i : i + 1], (keys[0, i], keys[1, i])) for i in range(64)]
    assert_equal(words, torch.from_numpy(np.concatenate(columns, axis=1).astype(np.int64)))
    mantissas = ((counters[0] >> 8) + 1) * 2.0**-24
    assert_equal(
        uniform, torch.from_numpy(np.nextafter(mantissas.astype(np.float32), np.float32(0)))
    )
    assert uniform.min() > 0 and uniform.max() < 1
    assert torch.isfinite(torch.log(-torch.log(uniform.cpu()))).all()


@pytest.mark.checks(SAMPLE)
@pytest.mark.parametrize(
    ("width", "vocab_size", "dtype"),
    [(1, 1, torch.float32), (4, 1027, torch.float32), (6, 3003, torch.bfloat16)],
)
def test_watermarked_tokens(
    device: torch.device, width: int, vocab_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(5, vocab_size) * 2).to(dtype)
    logits[2, 1:] = -math.inf
    logits[3, 1::2] = math.nan  # never to be sampled
    contexts = torch.randint(0, 50_000, (5, width))
    contexts[0, 0] = -1
    found = philox_gumbel_sample(Rows(logits, device).view, Rows(contexts, device).view, KEY).cpu()
    for row in range(5):
        noise = -np.log(
            -np.log(watermark_uniform(contexts[row].tolist(), vocab_size, KEY).astype(float))
        )
        scores = np.nan_to_num(logits[row].double().numpy(), nan=-np.inf) + noise
        assert scores[int(found[row])] >= scores.max() - 1e-5


@pytest.mark.checks(SAMPLE)
def test_skipped_rows_and_cached_logits(device: torch.device) -> None:
    vocab_size = 1100
    logits = torch.zeros(4, vocab_size)
    logits[2, 77] = 5.0
    mapping, skip = [1, 0, 2, -1], [False, True, True, True]
    contexts = int32([[3, 4]] * 4)
    cache, source = Rows(torch.zeros(3, 2, vocab_size), device), torch.randn(4, vocab_size)

    def sample(seed: int) -> Tensor:
        return philox_gumbel_sample(
            logits.to(device),
            contexts.to(device),
            KEY,
            skip_mask=torch.tensor(skip).to(device),
            expanded_idx_mapping=int32(mapping, device),
            temperatures=float32([0.7, 1.0, 0.0], device),
            seeds=int64([seed, seed, seed], device),
            positions=int64([5, 6, 7, 8], device),
            logits_cache=cache.view,
            logits_cache_col=int64([0, 1, 1, 0], device),
            logits_cache_source=source.to(device),
        ).cpu()

    first, again, other = sample(1), sample(1), sample(2)
    assert_equal(first, again)
    # Only a watermarked row does without the seed; only a skipped one with a temperature uses it.
    assert first[0] == other[0] == watermark_uniform([3, 4], vocab_size, KEY).argmax()
    assert first[1] != other[1]
    assert first[2] == other[2] == 77
    expected = torch.zeros(3, 2, vocab_size)
    for row, column in [(0, 0), (1, 1), (2, 1)]:
        expected[mapping[row], column] = source[row]
    assert_equal(cache.cpu(), expected)


@pytest.mark.checks(SAMPLE)
def test_distribution_over_contexts(device: torch.device, draws: int) -> None:
    draws //= 4
    logits = torch.linspace(-2, 1, 13)
    contexts = torch.arange(draws * 2).view(draws, 2)
    found = philox_gumbel_sample(logits.to(device).expand(draws, -1), contexts.to(device), KEY)
    counts = torch.bincount(found.cpu(), minlength=13)
    assert chi_square_p_value(counts, torch.softmax(logits.double(), 0)) > 1e-4


def came_before(
    tokens: list[int], prompt: int, context: list[int], newer: int, options: dict
) -> bool:
    """Whether one of the last `history` positions had `context` in front of it.

    Positions count from the start of the output, or of the prompt where it is included; in front
    of that start there is padding. `newer` positions that are not committed use up history.
    """
    width = len(context)
    if options["skip_partial"] and len(tokens) - prompt < width:
        return True
    sequence = [-1] * width + (tokens if options["include_prompt"] else tokens[prompt:])
    positions = range(width, len(sequence))
    if options["history"]:
        positions = positions[max(0, len(positions) - max(options["history"] - newer, 0)) :]
    return any(sequence[at - width : at] == context for at in positions)


@pytest.mark.checks(MASK)
@pytest.mark.parametrize("history", [0, 4, 600])
@pytest.mark.parametrize("include_prompt", [False, True], ids=["output", "with prompt"])
def test_repeated_contexts(device: torch.device, history: int, include_prompt: bool) -> None:
    random = np.random.default_rng(history)
    width = 3
    totals, prompts = [1700, 6, 40, 2], [600, 4, 1, 2]
    tokens = [random.integers(0, 12, n).tolist() for n in totals]
    table = torch.full((4, 1800), 3, dtype=torch.int32)
    for state, values in enumerate(tokens):
        table[state, : len(values)] = int32(values)
    mapping = [0, 1, -1, 2, 3, 0, 0, 2, 1, 3] * 2
    contexts = random.integers(-1, 12, (len(mapping), width))
    contexts[0], contexts[5] = tokens[0][1000:1003], tokens[0][-4:-1]
    contexts[4] = contexts[3] = [-1, -1, -1]
    newer = random.integers(0, 4, len(mapping))
    options = {"history": history, "include_prompt": include_prompt}
    options["skip_partial"] = not include_prompt
    found = torch.zeros(len(mapping), dtype=torch.bool, device=device)
    contexts_on = Rows(int32(contexts), device).view
    table_on = Rows(table, device).view
    _repeated_context_mask_kernel[(len(mapping),)](
        found,
        table_on,
        table_on.stride(0),
        int32(mapping, device),
        int32(prompts, device),
        int32(totals, device),
        int32(newer, device),
        1,
        contexts_on,
        contexts_on.stride(0),
        None,
        None,
        0,
        0,
        None,
        0,
        None,
        CONTEXT_WIDTH=width,
        NUM_SPECULATIVE_STEPS=0,
        MAX_HISTORY=history,
        INCLUDE_PROMPT=include_prompt,
        SKIP_PARTIAL_CONTEXT=options["skip_partial"],
        HAS_HISTORY_OFFSETS=True,
        SPECULATIVE_CONTEXTS=False,
        DRAFT_CONTEXTS=False,
        BLOCK=512,
    )
    expected = [
        state >= 0
        and came_before(tokens[state], prompts[state], context.tolist(), int(offset), options)
        for state, context, offset in zip(mapping, contexts, newer, strict=True)
    ]
    assert len(set(expected)) == 2
    assert found.cpu().tolist() == expected


@pytest.mark.checks(MASK)
def test_contexts_of_a_speculative_block(device: torch.device) -> None:
    # Requests 1 and 0 verify three drafts each; history holds nothing like their contexts.
    mapping, local = [1, 1, 1, 1, 0, 0, 0, -1], [0, 1, 2, 3, 0, 1, 2, 0]
    contexts = [[5, 5], [5, 6], [5, 5], [-1, 5], [5, 5], [6, 7], [6, 7], [6, 7]]
    for include_prompt, history, repeats in [(False, 0, [2, 6]), (True, 1, [3, 6])]:
        found = torch.zeros(8, dtype=torch.bool, device=device)
        _repeated_context_mask_kernel[(8,)](
            found,
            torch.full((2, 40), 9, dtype=torch.int32, device=device),
            40,
            int32(mapping, device),
            int32([3, 3], device),
            int32([20, 30], device),
            None,
            0,
            int32(contexts, device),
            2,
            int32(local, device),
            None,
            0,
            0,
            None,
            0,
            None,
            CONTEXT_WIDTH=2,
            NUM_SPECULATIVE_STEPS=3,
            MAX_HISTORY=history,
            INCLUDE_PROMPT=include_prompt,
            SKIP_PARTIAL_CONTEXT=False,
            HAS_HISTORY_OFFSETS=False,
            SPECULATIVE_CONTEXTS=True,
            DRAFT_CONTEXTS=False,
            BLOCK=512,
        )
        assert found.cpu().nonzero()[:, 0].tolist() == repeats


@pytest.mark.checks(MASK)
@pytest.mark.parametrize("history", [0, 2])
def test_contexts_of_drafts(device: torch.device, history: int) -> None:
    steps, enabled = [0, 2, 3, 3, 1], [True, True, True, True, False]
    earlier = int32(np.arange(5 * 4 * 2).reshape(5, 4, 2) + 100)
    contexts = int32([[1, 1], [0, 0], [3, 3], [8, 8], [4, 4]])
    contexts[1], contexts[2] = earlier[1, 1], earlier[2, 0]
    prior = Rows(earlier, device, before=0)
    found = torch.zeros(5, dtype=torch.bool, device=device)
    tokens = torch.full((5, 30), 9, dtype=torch.int32)
    tokens[3, 20:22] = 8  # the committed output of request 3 had its context
    _repeated_context_mask_kernel[(5,)](
        found,
        tokens.to(device),
        30,
        int32(range(5), device),
        int32([5] * 5, device),
        int32([24] * 5, device),
        int32(steps, device),
        1,
        contexts.to(device),
        2,
        None,
        prior.view,
        prior.view.stride(0),
        prior.view.stride(1),
        int32(steps, device),
        1,
        torch.tensor(enabled).to(device),
        CONTEXT_WIDTH=2,
        NUM_SPECULATIVE_STEPS=4,
        MAX_HISTORY=history,
        INCLUDE_PROMPT=False,
        SKIP_PARTIAL_CONTEXT=False,
        HAS_HISTORY_OFFSETS=True,
        SPECULATIVE_CONTEXTS=False,
        DRAFT_CONTEXTS=True,
        BLOCK=512,
    )
    # With two positions of history, three drafts ago and the committed output are out of sight.
    repeated = [False, True, history == 0, history == 0, False]
    watermarked = [e and not r for e, r in zip(enabled, repeated, strict=True)]
    assert found.cpu().tolist() == watermarked
    for row, step in enumerate(steps):
        earlier[row, step] = contexts[row]
    assert_equal(prior.cpu(), earlier)
