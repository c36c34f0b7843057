# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: on one device what transformers computes, and on two what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .expert_models import distributions, make, prompts

HERE = Path(__file__).parent
KINDS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2")
NEW_TOKENS = 12
# Of a log-probability: two orders of the float32 sums of three layers, in all.
SUMMATION = 1e-4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp("models") / kind for kind in KINDS}
    for kind, folder in folders.items():
        make(kind, folder)
    return folders


def engines(
    folder: Path,
    engines: dict[str, dict[str, Any]],
    forced: list[list[int]] | None = None,
    **environment: str,
) -> dict[str, Any]:
    job, result = folder / "job.json", folder / "result.json"
    text = {"prompts": prompts(), "new_tokens": NEW_TOKENS, "forced": forced or []}
    job.write_text(json.dumps(text | {"engines": engines}))
    done = subprocess.run(
        [sys.executable, str(HERE / "expert_engines.py"), str(job), str(result)],
        env={**os.environ, "VLLM_PLUGINS": "anvil", "VLLM_NO_USAGE_STATS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(result.read_text()) | {"log": done.stdout + done.stderr}


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every kind on one device, in float32."""
    return engines(
        tmp_path_factory.mktemp("alone"),
        {kind: {"model": str(folder), "dtype": "float32"} for kind, folder in models.items()},
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_agrees(kind: str, models: dict[str, Path], alone: dict[str, Any]) -> None:
    report = alone[kind]
    expected = distributions(models[kind], prompts(), report["tokens"])
    for tokens, logprobs, rows in zip(report["tokens"], report["logprobs"], expected, strict=True):
        assert tokens == rows.argmax(-1).tolist()
        chosen = rows.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
        assert (torch.tensor(logprobs) - chosen).abs().max() < 1e-4
    assert not report["fallbacks"]
    # Prompts take the model's Python; the decode steps behind them are replayed.
    assert report["steps"] < NEW_TOKENS


def two_devices(folder: Path, model: Path, forced: list[list[int]], **options: Any) -> Any:
    arguments = {"model": str(model), "tensor_parallel_size": 2, **options}
    return engines(folder, {"two": arguments}, forced, ANVIL_DEVICES="2")


needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices need two cores"
)


@needs_two_cores
@pytest.mark.parametrize(
    "options",
    [
        {"enable_expert_parallel": True},
        pytest.param({"enable_expert_parallel": False}, marks=pytest.mark.slow),
    ],
    ids=["experts", "columns"],
)
def test_two_devices_share_the_experts(
    options: dict[str, Any], models: dict[str, Path], alone: dict[str, Any], tmp_path: Path
) -> None:
    """Each has half of the experts, or half of each expert. Decode steps are replayed from graphs,
    with their collectives."""
    found = two_devices(tmp_path, models["mixtral"], [], dtype="float32", **options)
    one, two = alone["mixtral"], found["two"]
    assert two["tokens"] == one["tokens"]
    for ours, theirs in zip(two["logprobs"], one["logprobs"], strict=True):
        assert (torch.tensor(ours) - torch.tensor(theirs)).abs().max() < SUMMATION
    for device in ("anvil:0", "anvil:1"):
        assert f"AnvilWorker on device={device}" in found["log"]
    assert "Graph capturing finished" in found["log"]
