# SPDX-License-Identifier: Apache-2.0
"""Drafts looked up in the request's own tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparison import Rows, assert_equal, int32, int64
from vllm.triton_utils import triton
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator

MODULE = "vllm.v1.worker.gpu.spec_decode.ngram.speculator"


def make_speculator(
    device: torch.device, max_len: int, shortest: int, longest: int, steps: int, states: object
) -> NgramGPUSpeculator:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=steps
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=max_len),
    )
    return NgramGPUSpeculator(config, device, states)  # type: ignore[arg-type]


def look_up(tokens: list[int], shortest: int, longest: int, steps: int) -> list[int]:
    """What follows the last earlier place of the longest suffix that comes twice, if any."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[-size:]
        for begin in range(len(tokens) - size - 1, -1, -1):
            if tokens[begin : begin + size] == suffix:
                return tokens[begin + size :][:steps]
    return []


@pytest.mark.checks(f"{MODULE}:_ngram_scan_kernel", f"{MODULE}:_ngram_finalize_kernel")
@pytest.mark.parametrize(
    ("max_len", "shortest", "longest", "steps"), [(1500, 2, 5, 4), (50, 1, 3, 1), (300, 3, 3, 7)]
)
def test_drafts(
    device: torch.device, max_len: int, shortest: int, longest: int, steps: int
) -> None:
    random = np.random.default_rng(max_len)
    lengths = [max_len, 3, 1, max_len - 1, max_len // 2, 40]
    # Few different tokens: matches of every length, at the ends of blocks and across them.
    tokens = [
        random.integers(0, symbols, n).tolist()
        for n, symbols in zip(lengths, [9, 1, 1, 3, 2, 40], strict=True)
    ]
    table = torch.zeros(6, max_len, dtype=torch.int32)
    for state, values in enumerate(tokens):
        table[state, : len(values)] = int32(values)
    states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=Rows(table, device).view),
        total_len=SimpleNamespace(gpu=int32(lengths, device)),
    )
    speculator = make_speculator(device, max_len, shortest, longest, steps, states)
    mapping, sampled = [3, 0, 5, 1, 4, 2, 0], [1, 2, 1, 1, 3, 1, 0]
    last = int64(np.arange(6) + 900)
    batch = SimpleNamespace(num_reqs=len(mapping), idx_mapping=int64(mapping, device))
    unused = torch.empty(0)
    drafts = speculator.propose(
        batch,
        None,
        None,
        unused,
        None,
        int32(sampled, device),
        unused,
        last.to(device)[:, None],
        unused,
        unused,
        unused,
    )
    expected = []
    for state, count in zip(mapping, sampled, strict=True):
        found = look_up(tokens[state], shortest, longest, steps) if count else []
        expected.append(found + [int(last[state])] * (steps - len(found)))
    assert any(row[0] < 900 for row in expected) and expected[-1][0] == 900
    assert_equal(drafts, int64(expected))
    assert speculator.n_blocks == triton.cdiv(max_len, speculator.block_l)
