# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M on the anvil device against Hugging Face transformers on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import NEW_TOKENS, EngineRun, Reference

BFLOAT16_TOLERANCE = 0.05
TIE = 0.02  # a top-2 gap, in log-probability, that bfloat16 may decide either way
MAX_DIVERGING = 2


RUNNERS = {"v1": "0", "v2": "1"}


ENGINES = [("float32", "v2"), ("bfloat16", "v2"), ("bfloat16", "v1")]


@pytest.fixture(scope="module")
def runs(
    smollm2: Path, engine_run: EngineRun, reference: Reference, at_once: Callable[..., Any]
) -> Callable[[str, str], dict]:
    """`runs(dtype, runner)`: greedy generation for every prompt, then the reference's tokens
    teacher-forced."""
    greedy = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "min_tokens": NEW_TOKENS}
    forced = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1}
    requests = [{"token_ids": prompt, "params": greedy} for prompt in reference.prompts]
    requests += [
        {"token_ids": prompt + tokens, "params": forced}
        for prompt, tokens in zip(reference.prompts, reference.tokens, strict=True)
    ]

    def run(dtype: str, runner: str) -> dict:
        engine = {
            "model": str(smollm2),
            "dtype": dtype,
            "max_model_len": 1024,
            "max_num_seqs": 32,
        }
        return engine_run(engine, requests, VLLM_USE_V2_MODEL_RUNNER=RUNNERS[runner])

    started = at_once({engine: functools.partial(run, *engine) for engine in ENGINES})
    return lambda dtype, runner: started[dtype, runner].result()


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def run(request: Any, runs: Callable[[str, str], dict]) -> tuple[str, dict]:
    dtype, runner = request.param
    result = runs(dtype, runner)
    assert result["runner"] == runner
    return dtype, result


def test_runs_on_the_device(run: tuple[str, dict]) -> None:
    assert run[1]["platform"] == "AnvilPlatform" and run[1]["device_type"] == "anvil"


def test_greedy_tokens(run: tuple[str, dict], reference: Reference) -> None:
    dtype, result = run
    diverging = []
    for number, expected in enumerate(reference.tokens):
        tokens = result["outputs"][number]["token_ids"]
        assert len(tokens) == NEW_TOKENS
        if tokens != expected:
            first = next(i for i in range(NEW_TOKENS) if tokens[i] != expected[i])
            diverging.append((number, first, reference.gaps[number][first].item()))
    if dtype == "float32":
        assert not diverging
    else:
        assert len(diverging) <= MAX_DIVERGING, diverging
        assert all(gap < TIE for _, _, gap in diverging), diverging


def test_teacher_forced_log_probabilities(run: tuple[str, dict], reference: Reference) -> None:
    dtype, result = run
    forced = result["outputs"][len(reference.prompts) :]
    exact = reference.logprobs[torch.float32]
    ours = [torch.tensor(output["prompt_logprobs"][-NEW_TOKENS:]) for output in forced]
    distance = torch.stack([(a - b).abs() for a, b in zip(ours, exact, strict=True)])
    if dtype == "float32":
        assert distance.max() < 1e-3
        return
    half = reference.logprobs[torch.bfloat16]
    transformers_distance = torch.stack([(a - b).abs() for a, b in zip(half, exact, strict=True)])
    print(
        f"farthest from float32: anvil {distance.max():.4f}, "
        f"transformers {transformers_distance.max():.4f}; "
        f"mean {distance.mean():.4f} and {transformers_distance.mean():.4f}"
    )
    assert distance.max() <= BFLOAT16_TOLERANCE
    assert distance.mean() < transformers_distance.mean() / 2


def test_model_runners_agree(runs: Callable[[str, str], dict], reference: Reference) -> None:
    """V2's tokens are V1's, but for proven ties, and so are the log-probabilities."""
    old, new = (runs("bfloat16", runner)["outputs"] for runner in ("v1", "v2"))
    for number in range(len(reference.prompts)):
        a, b = old[number]["token_ids"], new[number]["token_ids"]
        if a != b:
            first = next(i for i in range(NEW_TOKENS) if a[i] != b[i])
            same_so_far = a[:first] == reference.tokens[number][:first]
            assert same_so_far and reference.gaps[number][first] < TIE, (number, first)
    for one, other in zip(old, new, strict=True):
        distance = torch.tensor(one["prompt_logprobs"]) - torch.tensor(other["prompt_logprobs"])
        assert distance.numel() == 0 or distance.abs().max() < 1e-3
