# SPDX-License-Identifier: Apache-2.0
"""Decode steps that are replayed from graphs give what the same steps give op by op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

SETTINGS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "eager": {"enforce_eager": True},
    "mixed": {"compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [4, 16]}},
}


@pytest.fixture(scope="module")
def requests(chat_prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Twelve that end one after the other: batches of every size, padded ones among them."""
    return [
        {
            "token_ids": tokens,
            "params": {
                "max_tokens": 2 + number,
                "temperature": 0,
                "ignore_eos": True,
                "logprobs": 1,
            },
        }
        for number, tokens in enumerate(chat_prompts[:12])
    ]


@pytest.fixture(scope="module")
def runs(
    engine_run: Callable[..., Any],
    smollm2: Path,
    requests: list[dict[str, Any]],
    at_once: Callable[..., Any],
) -> Mapping[str, Future[dict[str, Any]]]:
    def run(name: str) -> dict[str, Any]:
        engine = {"model": str(smollm2), "max_model_len": 512, "max_num_seqs": 12}
        return engine_run(engine | SETTINGS[name], requests, VLLM_ENABLE_V1_MULTIPROCESSING="0")

    return at_once({name: functools.partial(run, name) for name in SETTINGS})


@pytest.mark.parametrize("name", ["graphs", "mixed"])
def test_same_tokens_and_logprobs(name: str, runs: Mapping[str, Future[dict[str, Any]]]) -> None:
    assert runs[name].result()["outputs"] == runs["eager"].result()["outputs"]


def test_decode_steps_run_no_python_of_the_model(
    runs: Mapping[str, Future[dict[str, Any]]],
) -> None:
    eager = runs["eager"].result()["forwards"]
    # The longest request has 13 tokens; all prompts fit into one step.
    assert eager == 13
    assert runs["graphs"].result()["forwards"] == 1
