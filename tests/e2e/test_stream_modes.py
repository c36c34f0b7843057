# SPDX-License-Identifier: Apache-2.0
"""However its streams run, the device gives SmolLM2 the same tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

# Few cores make up for the cost of the slower modes with few tokens.
TOKENS = 12
MODES = {
    "asynchronous": {},
    "blocking": {"ANVIL_LAUNCH_BLOCKING": "1"},
    "delayed": {"ANVIL_DEBUG_DELAY": "200"},
    "poisoned": {"ANVIL_DEBUG_POISON": "1"},
    "sanitised": {"ANVIL_SANITIZE": "1"},
}
OFF = {"ANVIL_LAUNCH_BLOCKING": "0", "ANVIL_DEBUG_DELAY": "0", "ANVIL_DEBUG_POISON": "0"}


@pytest.fixture(scope="module")
def requests(chat_prompts: list[list[int]]) -> list[dict[str, Any]]:
    params = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 0}
    return [{"token_ids": tokens, "params": params} for tokens in chat_prompts[:4]]


@pytest.fixture(scope="module")
def runs(
    engine_run: Callable[..., Any],
    smollm2: Path,
    requests: list[dict[str, Any]],
    at_once: Callable[..., Any],
) -> Mapping[str, Future[dict[str, Any]]]:
    """The engines' reports, by mode."""

    def run_mode(mode: str) -> dict[str, Any]:
        engine = {"model": str(smollm2), "max_model_len": 512, "max_num_seqs": 4}
        environment = OFF | {"ANVIL_SANITIZE": "0"} | MODES[mode]
        return engine_run(engine, requests, VLLM_ENABLE_V1_MULTIPROCESSING="0", **environment)

    return at_once({mode: functools.partial(run_mode, mode) for mode in MODES})


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "asynchronous"])
def test_same_tokens_and_logprobs(mode: str, runs: Mapping[str, Future[dict[str, Any]]]) -> None:
    result = runs[mode].result()
    assert result["platform"] == "AnvilPlatform"
    assert result["outputs"] == runs["asynchronous"].result()["outputs"]
    assert result["sanitizer_reports"] == []
