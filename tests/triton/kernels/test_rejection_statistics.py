# SPDX-License-Identifier: Apache-2.0
"""The numbers that verification is made of, block by block of the vocabulary."""

import math

import numpy as np
import pytest
import torch
from comparison import Rows, assert_close_ulp, assert_equal, float32, int32, int64, offsets
from random_reference import gumbel_noise, watermark_uniform
from torch import Tensor
from vllm.v1.worker.gpu.sample.gumbel import _gumbel_sample_kernel
from vllm.v1.worker.gpu.sample.watermark import _philox_gumbel_kernel
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import (
    _compute_cumulative_log_p_kernel,
    _compute_local_logits_stats_kernel,
    _compute_local_residual_mass_kernel,
)

UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
BLOCK, STEPS = 1024, 3
STATES, DRAFTS = [2, 0, 1], [[5, 1050, 7], [3], [2047, -1, 9]]
UNTOUCHED = -5.0


class Verification:
    """Three requests; the second is greedy. Three blocks of vocabulary, the last one short."""

    def __init__(self, device: torch.device, dtype: torch.dtype):
        torch.manual_seed(0)
        self.vocab_size = 2 * BLOCK + 3
        self.blocks = 3
        num_logits = [len(draft) + 1 for draft in DRAFTS]
        self.rows = sum(num_logits)
        self.starts = offsets(num_logits)
        self.owners = np.repeat(STATES, num_logits)
        self.local = np.concatenate([np.arange(n) for n in num_logits])
        self.ids = [token for draft in DRAFTS for token in (77, *draft)]
        self.temperatures = float32([0.0, 1.5, 0.7])
        self.target = (torch.randn(self.rows, self.vocab_size) * 2).to(dtype)
        self.target[0, BLOCK : 2 * BLOCK] = -math.inf  # a block without any token
        self.target[0, 1050] = 1.0
        self.target[1, : 2 * BLOCK] = -math.inf
        self.target[1, 1050] = 0.5
        self.draft = (torch.randn(3, STEPS, self.vocab_size) * 2).to(dtype)
        self.device = device
        self.on_device = [
            Rows(self.target, device).view,
            Rows(self.draft, device).view,
            int32(self.ids, device),
            int32(self.owners, device),
            int32(self.local, device),
            self.temperatures.to(device),
        ]

    def scratch(self, dtype: torch.dtype = torch.float32) -> Tensor:
        shape = (self.rows, self.blocks)
        return torch.full(shape, UNTOUCHED, dtype=dtype, device=self.device)

    def statistics(self) -> list[Tensor]:
        """The target's argmax, maximum and sum, and the draft's maximum and sum, of each block."""
        target, draft, _, owners, local, temperatures = self.on_device
        found = [self.scratch(torch.int64), *(self.scratch() for _ in range(4))]
        strided = [value for tensor in found for value in (tensor, tensor.stride(0))]
        _compute_local_logits_stats_kernel[(self.rows, self.blocks)](
            *strided,
            target,
            target.stride(0),
            draft,
            draft.stride(0),
            draft.stride(1),
            owners,
            local,
            temperatures,
            self.vocab_size,
            STEPS,
            BLOCK_SIZE=BLOCK,
            HAS_DRAFT_LOGITS=True,
        )
        return found

    def log_probabilities(self, row: int) -> tuple[Tensor, Tensor]:
        """Of the target, and of the draft at that row's step; float64 [vocab]."""
        state, step = self.owners[row], self.local[row]
        scaled = self.draft[state, step].double() / float(self.temperatures[state])
        return torch.log_softmax(self.target[row].double(), 0), torch.log_softmax(scaled, 0)


def block_statistics(logits: Tensor) -> tuple[Tensor, Tensor]:
    """float64 [blocks] twice: the maxima, and the sums of exponentials below them."""
    maxima, sums = [], []
    for block in torch.split(logits.double(), BLOCK):
        maxima.append(block.max())
        finite = bool(block.max() > -math.inf)
        sums.append((block - block.max()).exp().sum() if finite else torch.tensor(0.0).double())
    return torch.stack(maxima), torch.stack(sums)


@pytest.mark.checks(f"{UTILS}:_compute_local_logits_stats_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_block_statistics(device: torch.device, dtype: torch.dtype) -> None:
    batch = Verification(device, dtype)
    best, target_max, target_sum, draft_max, draft_sum = (t.cpu() for t in batch.statistics())
    for row, (state, step) in enumerate(zip(batch.owners, batch.local, strict=True)):
        temperature = float(batch.temperatures[state])
        if step >= STEPS:  # the bonus token is not verified
            assert (target_max[row] == UNTOUCHED).all() and (draft_max[row] == UNTOUCHED).all()
            continue
        maxima, sums = block_statistics(batch.target[row])
        assert_close_ulp(target_max[row], maxima, 0.5)
        if temperature == 0:
            blocks = torch.split(batch.target[row].float(), BLOCK)
            assert_equal(
                best[row], int64([int(b.argmax()) + i * BLOCK for i, b in enumerate(blocks)])
            )
            assert (target_sum[row] == UNTOUCHED).all()
            continue
        assert_close_ulp(target_sum[row], sums, 8)
        maxima, sums = block_statistics(batch.draft[state, step].float() / temperature)
        assert_close_ulp(draft_max[row], maxima, 1)
        assert_close_ulp(draft_sum[row], sums, 8)


@pytest.mark.checks(
    f"{UTILS}:_compute_cumulative_log_p_kernel", f"{UTILS}:_compute_local_residual_mass_kernel"
)
def test_ratios_and_residual_masses(device: torch.device) -> None:
    batch = Verification(device, torch.float32)
    target, draft, ids, owners, local, temperatures = batch.on_device
    _, *sums = batch.statistics()
    strided = [value for tensor in sums for value in (tensor, tensor.stride(0))]
    ratios = torch.full((batch.rows,), UNTOUCHED, device=device)
    draft_strides = (draft.stride(0), draft.stride(1))
    _compute_cumulative_log_p_kernel[(3,)](
        ratios,
        target,
        target.stride(0),
        *strided[:4],
        ids,
        draft,
        *draft_strides,
        *strided[4:],
        batch.starts.to(device),
        int32(STATES, device),
        temperatures,
        batch.blocks,
        PADDED_VOCAB_NUM_BLOCKS=4,
        HAS_DRAFT_LOGITS=True,
    )
    masses = batch.scratch()
    _compute_local_residual_mass_kernel[(batch.rows, batch.blocks)](
        masses,
        masses.stride(0),
        ratios,
        target,
        target.stride(0),
        *strided[:4],
        draft,
        *draft_strides,
        *strided[4:],
        ids,
        owners,
        local,
        temperatures,
        batch.vocab_size,
        STEPS,
        batch.blocks,
        BLOCK_SIZE=BLOCK,
        PADDED_VOCAB_NUM_BLOCKS=4,
    )
    want_ratios = torch.full((batch.rows,), UNTOUCHED, dtype=torch.float64)
    want_masses = torch.full((batch.rows, batch.blocks), UNTOUCHED, dtype=torch.float64)
    for request, (state, tokens) in enumerate(zip(STATES, DRAFTS, strict=True)):
        if batch.temperatures[state] == 0:
            continue
        ratio = 0.0  # the logarithm of what came before
        for step, token in enumerate(tokens):
            row = int(batch.starts[request]) + step
            p, q = batch.log_probabilities(row)
            if step and token >= 0:
                rest = (math.exp(ratio) * p.exp() - q.exp()).clamp(min=0)
                want_masses[row] = torch.stack([b.sum() for b in torch.split(rest, BLOCK)])
            if token >= 0:  # one that is not there leaves the ratio as it was
                ratio = min(ratio + float(p[token] - q[token]), 0.0)
            want_ratios[row] = ratio
    assert (want_ratios == UNTOUCHED).sum() == 4 and (want_masses > 0).any()
    assert_close_ulp(ratios, want_ratios, 16, magnitude=16.0)
    assert_close_ulp(masses, want_masses, 64, magnitude=1.0)


@pytest.mark.checks("vllm.v1.worker.gpu.sample.gumbel:_gumbel_sample_kernel")
@pytest.mark.parametrize("use_fp64", [False, True], ids=["fp32", "fp64"])
def test_best_values_of_blocks(device: torch.device, use_fp64: bool) -> None:
    torch.manual_seed(1)
    vocab_size, blocks = 2 * BLOCK + 3, 3
    logits, temperatures = torch.randn(4, vocab_size), float32([0.6, 1.0, 0.0])
    states, positions, seeds = [1, 0, 2, 1], [9, 8, 7, 6], [3, -4, 5]
    tokens = torch.zeros(4, blocks, dtype=torch.int64, device=device)
    values = torch.zeros(4, blocks, device=device).to(torch.float64 if use_fp64 else torch.float32)
    placed = Rows(logits, device).view
    _gumbel_sample_kernel[(4, blocks)](
        tokens,
        tokens.stride(0),
        values,
        values.stride(0),
        None,
        0,
        0,
        None,
        None,
        0,
        placed,
        placed.stride(0),
        int32(states, device),
        int64(seeds, device),
        int64(positions, device),
        temperatures.to(device),
        vocab_size,
        BLOCK_SIZE=BLOCK,
        IS_DRAFTING=False,
        APPLY_TEMPERATURE=True,
        USE_FP64=use_fp64,
        PER_TOKEN_COL=False,
    )
    for row, state in enumerate(states):
        scores = logits[row].double()
        if temperatures[state] > 0:
            noise = gumbel_noise(seeds[state], positions[row], vocab_size, use_fp64)
            scores = scores / temperatures[state].double() + torch.from_numpy(noise)
        best = torch.stack([block.max() for block in torch.split(scores, BLOCK)])
        assert_equal(scores[tokens[row].cpu()] >= best - 1e-5, torch.ones(blocks, dtype=torch.bool))
        assert_close_ulp(values[row].float(), best, 8, magnitude=8.0)


@pytest.mark.checks("vllm.v1.worker.gpu.sample.watermark:_philox_gumbel_kernel")
def test_best_watermarked_values_of_blocks(device: torch.device) -> None:
    torch.manual_seed(2)
    vocab_size, blocks, key = 2 * BLOCK + 3, 3, 0x9_8765_4321
    logits, contexts = torch.randn(3, vocab_size), int32([[1, 2, 3], [4, 5, 6], [-1, -1, 7]])
    tokens = torch.zeros(3, blocks, dtype=torch.int64, device=device)
    values = torch.zeros(3, blocks, device=device)
    placed = Rows(logits, device).view
    nothing = (None,) * 5
    _philox_gumbel_kernel[(3, blocks)](
        tokens,
        tokens.stride(0),
        values,
        values.stride(0),
        placed,
        placed.stride(0),
        contexts.to(device),
        3,
        *nothing,
        None,
        0,
        0,
        None,
        None,
        0,
        key & 0xFFFFFFFF,
        key >> 32,
        vocab_size,
        CONTEXT_WIDTH=3,
        BLOCK_SIZE=BLOCK,
        USE_FP64=False,
        IS_DRAFTING=False,
        PER_TOKEN_COL=False,
    )
    for row in range(3):
        uniform = watermark_uniform(contexts[row].tolist(), vocab_size, key).astype(np.float64)
        scores = logits[row].double() - torch.from_numpy(np.log(-np.log(uniform)))
        best = torch.stack([block.max() for block in torch.split(scores, BLOCK)])
        assert_equal(scores[tokens[row].cpu()] >= best - 1e-5, torch.ones(blocks, dtype=torch.bool))
        # -log(u) loses what u near 1 has been rounded by.
        assert_close_ulp(values[row], best, 64, magnitude=16.0)
