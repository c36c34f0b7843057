# SPDX-License-Identifier: Apache-2.0
"""Seeded sampling: the hash and uniform numbers bit for bit, the draws by their distribution."""

import math

import numpy as np
import pytest
import torch
from comparison import (
    Rows,
    assert_close_ulp,
    assert_equal,
    chi_square_p_value,
    float32,
    int32,
    int64,
)
from random_reference import DRAFT_OFFSET, gumbel_noise, random_words
from torch import Tensor
from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample.gumbel import (
    _log1p_neg_stable,
    _uniform64_from_random53,
    gumbel_sample,
    murmur3_hash32,
    murmur3_uniform32,
    murmur3_uniform64,
)

SAMPLE = "vllm.v1.worker.gpu.sample.gumbel:_gumbel_sample_kernel"
SEEDS = [0, 1, -1, 42, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0]
POSITIONS = [0, 1, 4095, 2**31 - 1, 2**30 + 5]


@triton.jit
def _random_numbers_kernel(
    hashes_ptr, singles_ptr, doubles_ptr, seeds_ptr, positions_ptr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    tokens = tl.arange(0, BLOCK)
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    at = row * BLOCK + tokens
    tl.store(hashes_ptr + at, murmur3_hash32(seed, position, tokens).to(tl.int64))
    tl.store(singles_ptr + at, murmur3_uniform32(seed, position, tokens))
    tl.store(doubles_ptr + at, murmur3_uniform64(seed, position, tokens))


def test_hash_and_uniform_numbers(device: torch.device) -> None:
    keys = [(s, p) for s in SEEDS for p in POSITIONS]
    hashes = torch.zeros(len(keys), 64, dtype=torch.int64, device=device)
    singles, doubles = hashes.float(), hashes.double()
    _random_numbers_kernel[(len(keys),)](
        hashes,
        singles,
        doubles,
        int64([s for s, _ in keys], device),
        int64([p for _, p in keys], device),
        BLOCK=64,
    )
    for row, (seed, position) in enumerate(keys):
        low, full = random_words(seed, position, 64)
        assert_equal(hashes[row], torch.from_numpy(low.astype(np.int64)))
        # Correctly rounded middles of the 2**32 and 2**53 intervals: exact in the next format.
        middles = ((low.astype(np.float64) + 0.5) * 2.0**-32).astype(np.float32)
        assert_equal(singles[row], torch.from_numpy(middles))
        assert_equal(doubles[row], torch.from_numpy((full.astype(np.float64) + 0.5) * 2.0**-53))


@triton.jit
def _gumbel_helpers_kernel(values_ptr, logs_ptr, integers_ptr, uniform_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(logs_ptr + at, _log1p_neg_stable(tl.load(values_ptr + at)))
    tl.store(uniform_ptr + at, _uniform64_from_random53(tl.load(integers_ptr + at).to(tl.uint64)))


def test_ends_of_the_uniform_numbers(device: torch.device) -> None:
    # From the least and the greatest number that 32 bits give, to some that they never do.
    values = torch.linspace(0, 1, 128)
    values[:6] = float32([2.0**-33, 0.0, 1.0, 1 - 2.0**-24, 2.0**-24, 0.25])
    values[6:9] = float32([np.nextafter(np.float32(0.25), np.float32(0)), 1e-20, 1e-38])
    integers = torch.arange(128) * (2**46 + 12345)
    integers[:4] = int64([0, 1, 2**53 - 1, 2**53 - 2])
    logs, uniform = torch.zeros(128, device=device), torch.zeros(128, device=device).double()
    _gumbel_helpers_kernel[(1,)](values.to(device), logs, integers.to(device), uniform, BLOCK=128)
    exact = torch.log1p(-values.double().clamp(max=1 - 2.0**-24))
    assert_close_ulp(logs, exact, 4, magnitude=6.1e-7 / 4 / 1.2e-7)  # the stated 6e-7
    small = values < 2.0**-6
    assert_close_ulp(logs[small.to(device)], exact[small], 4)
    expected = (integers.double() + 0.5) * 2.0**-53
    expected[2] = 1 - 2.0**-53  # the middle of the last interval is no double: not 1, below it
    assert_equal(uniform, expected)
    found = uniform.cpu()
    assert found.min() > 0 and found.max() < 1
    noise = -torch.log(-torch.log(found))
    assert torch.isfinite(noise).all()


@pytest.mark.checks(SAMPLE)
@pytest.mark.parametrize("use_fp64", [False, True], ids=["fp32", "fp64"])
@pytest.mark.parametrize(
    ("vocab_size", "dtype", "drafting", "temperature_applied"),
    [
        (1, torch.float32, False, False),
        (1025, torch.float32, True, True),
        (3003, torch.bfloat16, False, True),
    ],
)
def test_sampled_tokens(
    device: torch.device,
    vocab_size: int,
    dtype: torch.dtype,
    drafting: bool,
    temperature_applied: bool,
    use_fp64: bool,
) -> None:
    torch.manual_seed(3)
    logits = (torch.randn(6, vocab_size) * 2).to(dtype)
    mapping, positions = [2, 0, 1, 2, -1, 1], [0, 17, 5, 1, 3, 2**20]
    temperatures, seeds = float32([0.0, 0.5, 1.7]), int64([9, -5, 2**40 + 1])
    found = gumbel_sample(
        Rows(logits, device).view,
        int32(mapping, device),
        temperatures.to(device),
        seeds.to(device),
        int64(positions, device),
        apply_temperature=temperature_applied,
        is_drafting=drafting,
        use_fp64=use_fp64,
    ).cpu()
    assert found.dtype == torch.int64
    for row, state in enumerate(mapping):
        scores = logits[row].double().numpy()
        if state >= 0 and temperatures[state] > 0:
            divisor = float(temperatures[state]) if temperature_applied else 1.0
            position = positions[row] + (DRAFT_OFFSET if drafting else 0)
            noise = gumbel_noise(int(seeds[state]), position, vocab_size, use_fp64)
            scores = scores / divisor + noise
        # The best token, or one that rounding may put before it.
        assert scores[int(found[row])] >= scores.max() - 1e-5
    assert found[1] == logits[1].argmax()


@pytest.mark.checks(SAMPLE)
@pytest.mark.parametrize("per_token_column", [False, True], ids=["one column", "columns"])
def test_cached_logits(device: torch.device, per_token_column: bool) -> None:
    torch.manual_seed(4)
    vocab_size = 1027
    logits, source = torch.randn(4, vocab_size), torch.randn(4, vocab_size).bfloat16()
    mapping, columns = [3, -1, 0, 3], [0, 1, 2, 1] if per_token_column else 2
    if not per_token_column:
        mapping[3] = 1
    cache = Rows(torch.zeros(4, 3, vocab_size, dtype=torch.bfloat16), device)
    gumbel_sample(
        logits.to(device),
        int32(mapping, device),
        torch.ones(4).to(device),
        int64([1, 2, 3, 4], device),
        int64([0, 1, 2, 3], device),
        apply_temperature=True,
        is_drafting=True,
        logits_cache=cache.view,
        logits_cache_col=torch.tensor(columns).to(device),
        logits_cache_source=Rows(source, device).view,
    )
    expected = torch.zeros(4, 3, vocab_size, dtype=torch.bfloat16)
    for row, state in enumerate(mapping):
        if state >= 0:
            expected[state, columns[row] if isinstance(columns, list) else columns] = source[row]
    assert_equal(cache.cpu(), expected)


def draw(device: torch.device, logits: Tensor, draws: int, use_fp64: bool, seed: int) -> Tensor:
    """How often each token comes at `draws` positions of one request."""
    found = gumbel_sample(
        logits.to(device).expand(draws, -1),
        torch.zeros(draws, dtype=torch.int32, device=device),
        float32([0.8], device),
        int64([seed], device),
        torch.arange(draws).to(device),
        apply_temperature=True,
        is_drafting=False,
        use_fp64=use_fp64,
    )
    return torch.bincount(found.cpu(), minlength=logits.shape[-1])


@pytest.mark.checks(SAMPLE)
@pytest.mark.parametrize("use_fp64", [False, True], ids=["fp32", "fp64"])
def test_distribution(device: torch.device, draws: int, use_fp64: bool) -> None:
    torch.manual_seed(5)
    logits = torch.randn(37)
    logits[11] = -math.inf
    counts = draw(device, logits, draws, use_fp64, seed=123)
    assert chi_square_p_value(counts, torch.softmax(logits.double() / 0.8, 0)) > 1e-4
    # And it notices: a tenth more of the likeliest token is not this distribution.
    wrong = logits.clone()
    wrong[wrong.argmax()] += math.log(1.6 if draws < 10_000 else 1.2) * 0.8
    assert chi_square_p_value(counts, torch.softmax(wrong.double() / 0.8, 0)) < 1e-4


@pytest.mark.checks(SAMPLE)
def test_seeds_and_positions_are_different_streams(device: torch.device) -> None:
    logits = torch.zeros(1, 1000)
    first, again = (draw(device, logits, 64, False, seed=1) for _ in range(2))
    assert_equal(first, again)
    assert not torch.equal(first, draw(device, logits, 64, False, seed=2))
    assert (first > 0).sum() > 50
