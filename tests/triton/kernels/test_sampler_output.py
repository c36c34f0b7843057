# SPDX-License-Identifier: Apache-2.0
"""What a sampler reports of its support, and tokens that replace sampled ones."""

import math

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64, offsets
from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
from vllm.v1.worker.gpu.sample.trace_replay import apply_trace_tokens

COMPACT = "vllm.v1.worker.gpu.sample.output:_compact_sampling_mask_kernel"
REPLAY = "vllm.v1.worker.gpu.sample.trace_replay:_trace_replay_kernel"


@pytest.mark.checks(COMPACT)
@pytest.mark.parametrize(
    ("vocab_size", "max_kept", "dtype"),
    [
        (1, 5, torch.float32),
        (8193, 100, torch.float32),
        (32003, 3000, torch.float32),
        (1023, 1023, torch.float16),
    ],
)
def test_sampling_mask(
    device: torch.device, vocab_size: int, max_kept: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(vocab_size)
    num_logits, num_sampled, rows = [3, 1, 2], int32([2, 1, 0]), 3
    logits = torch.randn(sum(num_logits), vocab_size).to(dtype)
    logits[torch.rand(logits.shape) < 0.7] = -math.inf
    logits[0, -1] = 1.0
    logits[1] = -math.inf
    logits[3, vocab_size // 2] = math.inf  # what is not finite was not kept by any processor
    logits[3, 0] = math.nan
    starts = offsets(num_logits)
    found = SamplingMaskTensors.from_logits(
        Rows(logits, device).view, starts.to(device), num_sampled.to(device), max_kept, rows
    )
    width = min(max_kept, vocab_size, 2048)
    assert found.token_ids.shape == (9, width)
    for request in range(3):
        for slot in range(rows):
            row = request * rows + slot
            if slot >= num_sampled[request]:
                assert found.counts.cpu()[row] == 0
                continue
            kept = torch.isfinite(logits[starts[request] + slot])
            ids = kept.nonzero()[:, 0].int()
            assert found.counts.cpu()[row] == len(ids)
            assert_equal(found.token_ids.cpu()[row, : len(ids)], ids[:width])
            bits = np.packbits(kept.numpy(), bitorder="little")
            assert_equal(found.packed_mask[row], torch.from_numpy(bits))


@pytest.mark.checks(COMPACT)
def test_sampling_mask_of_transposed_logits(device: torch.device) -> None:
    logits = torch.randn(2, 300)
    logits[:, ::3] = -math.inf
    transposed = logits.T.contiguous().to(device).T
    assert transposed.stride() == (1, 2)
    found = SamplingMaskTensors.from_logits(
        transposed, offsets([1, 1]).to(device), int32([1, 1], device), 300
    )
    ids = torch.tensor([i for i in range(300) if i % 3]).int()
    assert_equal(found.counts, int32([200, 200]))
    assert_equal(found.token_ids[:, :200], torch.stack([ids, ids]))


@pytest.mark.checks(REPLAY)
def test_trace_replay(device: torch.device) -> None:
    traces = int32(np.arange(5 * 30).reshape(5, 30) + 1000)
    lengths, prompt, total = [10, 0, 3, 30, 5], [4, 4, 9, 0, 6], [6, 4, 12, 29, 3]
    mapping = [3, 0, -1, 2, 4, 1]
    sampled = int64([1, 2, 3, 4, 5, 6], device)
    apply_trace_tokens(
        sampled,
        int32(mapping, device),
        Rows(traces, device).view,
        int32(lengths, device),
        int32(total, device),
        int32(prompt, device),
    )
    # Output tokens 29 and 2 are in their traces; 3 is behind the end of its own, -3 before it.
    assert_equal(sampled, int64([int(traces[3, 29]), int(traces[0, 2]), 3, 4, 5, 6]))
