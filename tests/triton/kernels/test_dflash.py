# SPDX-License-Identifier: Apache-2.0
"""DFlash drafting: a block of queries behind each context, and walks through candidates."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_close_ulp, assert_equal, float32, int32, int64, offsets
from random_reference import DRAFT_OFFSET, HIGH_WORD_DOMAIN, murmur3
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import prepare_dflash_inputs
from vllm.v1.worker.gpu.spec_decode.dflash2.speculator import CandidateSampler

PREPARE = "vllm.v1.worker.gpu.spec_decode.dflash.speculator:_prepare_dflash_inputs_kernel"
WALK = "vllm.v1.worker.gpu.spec_decode.dflash2.speculator:_selector_walk_kernel"
CACHE = "vllm.v1.worker.gpu.spec_decode.dflash2.speculator:_cache_draft_logits_kernel"
MASK_TOKEN = 31_999


def slot(position: int, blocks: torch.Tensor, size: int, ranks: tuple[int, int, int]) -> int:
    """The slot of `position` on one of the ranks that take turns, or the padding id."""
    rank, count, interleave = ranks
    block = int(blocks[min(position // (size * count), len(blocks) - 1)])
    turn, within = divmod(position % (size * count), interleave)
    if block == 0 or turn % count != rank:
        return PAD_SLOT_ID
    return block * size + turn // count * interleave + within


@pytest.mark.checks(PREPARE)
@pytest.mark.parametrize(
    ("anchor", "ranks"), [(False, (0, 1, 1)), (True, (1, 2, 4))], ids=["bonus", "anchor, 2 ranks"]
)
def test_inputs(device: torch.device, anchor: bool, ranks: tuple[int, int, int]) -> None:
    random = np.random.default_rng(0)
    lengths, states, rejected, sampled = [3, 600, 1], [4, 0, 2], [1, 0, 0], [2, 0, 1]
    steps, max_reqs, max_tokens, max_len, block_size = 4, 6, 900, 1024, 16
    queries = steps if anchor else steps + 1
    first = [40, 100, 1021]  # the last request's queries do not fit in the model's length
    positions = np.concatenate([np.arange(f, f + n) for f, n in zip(first, lengths, strict=True)])
    table = int32(random.integers(1, 5000, (max_reqs, 64)))
    table[1, 7:12] = 0  # blocks that a sliding window has let go
    temperatures, seeds = float32(random.uniform(0, 2, 5)), int64(random.integers(0, 2**62, 5))
    last_sampled, upcoming = int64(np.arange(5) + 100), int32(np.arange(5) + 200)

    def filled(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((size,), -7, dtype=dtype, device=device)

    made = InputBuffers(max_reqs, max_tokens, device)
    made.input_ids.fill_(-7)
    made.positions.fill_(-7)
    total = sum(lengths)
    query_slots, context_slots = filled(max_tokens, torch.int64), filled(total, torch.int64)
    context_positions = filled(total, torch.int64)
    indices, sample_positions = (filled(max_reqs * steps, torch.int64) for _ in range(2))
    sample_states = filled(max_reqs * steps, torch.int32)
    found_temperatures, found_seeds = torch.zeros(5, device=device), filled(5, torch.int64)
    prepare_dflash_inputs(
        made,
        query_slots,
        context_positions,
        context_slots,
        indices,
        sample_positions,
        sample_states,
        found_temperatures,
        found_seeds,
        SimpleNamespace(
            num_reqs=3,
            num_scheduled_tokens=np.array(lengths),
            positions=int64(positions, device),
            query_start_loc=offsets(lengths).to(device),
            idx_mapping=int32(states, device),
        ),
        int32(sampled, device),
        int32(rejected, device),
        last_sampled.to(device),
        upcoming.to(device),
        temperatures.to(device),
        seeds.to(device),
        table.to(device),
        block_size,
        *ranks,
        MASK_TOKEN,
        queries,
        steps,
        max_reqs,
        max_tokens,
        max_len,
        anchor,
    )
    want_context = torch.zeros(total, dtype=torch.int64)
    want_slots = torch.full((total,), PAD_SLOT_ID)
    want_ids, want_positions, want_query_slots, seq_lens = [], [], [], []
    want_indices, want_sample_positions = [], []
    for row, state in enumerate(states):
        begin, valid = sum(lengths[:row]), lengths[row] - rejected[row]
        for token in range(begin, begin + valid):
            want_context[token] = int(positions[token])
            want_slots[token] = slot(int(positions[token]), table[row], block_size, ranks)
        last = int(positions[begin + valid - 1])
        for query in range(queries):
            position = last + 1 + query
            want_positions.append(min(position, max_len - 1))
            want_query_slots.append(slot(position, table[row], block_size, ranks))
            bonus = int((last_sampled if sampled[row] else upcoming)[state])
            want_ids.append(MASK_TOKEN if query else bonus)
            if anchor or query:
                want_indices.append(row * queries + query)
                want_sample_positions.append(position + anchor)
        seq_lens.append(min(last + 1 + queries, max_len))
    assert_equal(context_positions, want_context)
    assert_equal(context_slots, want_slots)
    count = 3 * queries
    assert_equal(made.input_ids[:count], int32(want_ids))
    assert_equal(made.positions[:count], int64(want_positions))
    assert (made.input_ids[count:] == -7).all()
    padded = [*want_query_slots, *[PAD_SLOT_ID] * (max_tokens - count)]
    assert_equal(query_slots, int64(padded))
    unused = [0] * (3 * steps)
    assert_equal(indices, int64([*want_indices, *unused]))
    assert_equal(sample_positions, int64([*want_sample_positions, *unused]))
    assert_equal(sample_states, int32([*np.repeat(states, steps), *[-1] * (3 * steps)]))
    assert_equal(made.seq_lens, int32([*seq_lens, 0, 0, 0]))
    assert_equal(made.query_start_loc, int32([0, *(queries * np.array([1, 2, 3, 3, 3, 3]))]))
    assert_equal(found_temperatures[states], temperatures[states])
    assert_equal(found_seeds[states], seeds[states])
    assert_equal(found_seeds[[1, 3]], int64([-7, -7]))


def candidate_noise(seed: int, position: int, token: int, use_fp64: bool) -> float:
    low = murmur3(seed, position, token)
    if not use_fp64:
        return -math.log(-math.log1p(-(low + 0.5) * 2.0**-32))
    high = murmur3(seed, position, token, HIGH_WORD_DOMAIN)
    return -math.log(-math.log(((high << 32 | low) >> 11) * 2.0**-53 + 2.0**-54))


@pytest.mark.checks(WALK)
@pytest.mark.parametrize(
    ("probabilistic", "use_fp64", "top_k"),
    [
        pytest.param(True, False, 5, marks=pytest.mark.checks(CACHE)),
        pytest.param(True, True, 8, marks=pytest.mark.checks(CACHE)),
        (False, False, 3),
    ],
)
def test_candidate_walk(
    device: torch.device, probabilistic: bool, use_fp64: bool, top_k: int
) -> None:
    torch.manual_seed(top_k)
    requests, steps, vocab_size = 6, 3, 1030
    states = [4, 0, -1, 2, 5, 1]
    sampler = CandidateSampler(8, steps, top_k, device)
    logits = Rows(torch.full((8, steps, vocab_size), -math.inf), device)
    temperatures, seeds = float32([0.5, 0.0, 1.0, 1.0, 2.0, 0.9]), int64(np.arange(6) * 7919 + 1)
    held = torch.full((8, steps, vocab_size), -math.inf)
    for step_seed in range(2):  # the second round takes back what the first one wrote
        candidates = torch.stack(
            [torch.randperm(vocab_size)[:top_k] for _ in range(requests * steps)]
        ).view(requests, steps, top_k)
        scores = torch.randn(requests, steps, top_k, top_k)
        positions = torch.randint(1, 5000, (requests, steps))
        tokens = torch.full((requests, steps), -1, dtype=torch.int64, device=device)
        sampler.scores.fill_(-5)
        sampler.sample(
            candidates.to(device),
            scores.to(device),
            requests,
            positions.to(device),
            int32(np.repeat(states, steps), device),
            temperatures.to(device),
            (seeds + step_seed).to(device),
            tokens,
            logits.view if probabilistic else None,
            use_fp64,
        )
        realized = sampler.scores.cpu()
        for row, state in enumerate(states):
            if state < 0:
                assert (tokens[row] == -1).all() and (realized[row] == -5).all()
                continue
            previous = 0
            for step in range(steps):
                # The scores of the candidates behind the one chosen before.
                given = scores[row, step, previous].double()
                assert_close_ulp(realized[row, step], given, 0.5)
                noisy = given.clone()
                if probabilistic and temperatures[state] > 0:
                    noisy /= float(temperatures[state])
                    at = int(positions[row, step]) - 1 + DRAFT_OFFSET
                    for index, token in enumerate(candidates[row, step].tolist()):
                        seed = int(seeds[state]) + step_seed
                        noisy[index] += candidate_noise(seed, at, token, use_fp64)
                previous = int(noisy.argmax())
                assert tokens[row, step] == candidates[row, step, previous]
            held[state] = -math.inf
            held[state].scatter_(1, candidates[row], realized[row])
        if probabilistic:
            assert_equal(logits.cpu(), held)
