# SPDX-License-Identifier: Apache-2.0
"""An engine told not to use Anvil behaves bit for bit as if it were not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import EngineRun


@pytest.fixture(scope="module")
def job(tiny_llama: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    engine = {
        "model": str(tiny_llama),
        "dtype": "float32",
        "max_model_len": 128,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
    }
    params = {"temperature": 0.0, "max_tokens": 16, "prompt_logprobs": 1}
    requests = [
        {"token_ids": list(range(start, start + 20)), "params": params} for start in (1, 50, 99)
    ]
    return engine, requests


@pytest.fixture(scope="module")
def bare(job: Any, bare_python: str, engine_run: EngineRun) -> dict[str, Any]:
    return engine_run(*job, python=bare_python)


@pytest.mark.parametrize(
    "environment",
    [{"ANVIL_TARGET": "off"}, {"VLLM_TARGET_DEVICE": "cpu"}],
    ids=["off", "target-cpu"],
)
def test_same_engine_bit_for_bit(
    environment: dict[str, str], job: Any, bare: dict[str, Any], engine_run: EngineRun
) -> None:
    """Platform, runner, Triton flag, tokens and log-probabilities equal the bare environment's."""
    assert bare["device_type"] == "cpu"
    assert engine_run(*job, **environment) == bare
