# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: on one device what transformers computes, and on two what one does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from .expert_models import distributions, make, prompts

HERE = Path(__file__).parent
KINDS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2")
NEW_TOKENS = 12
ENGINE = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 8 << 20,
}
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
    arguments = {"model": str(models["mixtral"]), "dtype": "float32", "tensor_parallel_size": 2}
    found = engines(tmp_path, {"two": arguments | options}, ANVIL_DEVICES="2")
    one, two = alone["mixtral"], found["two"]
    assert two["tokens"] == one["tokens"]
    for ours, theirs in zip(two["logprobs"], one["logprobs"], strict=True):
        assert (torch.tensor(ours) - torch.tensor(theirs)).abs().max() < SUMMATION
    for device in ("anvil:0", "anvil:1"):
        assert f"AnvilWorker on device={device}" in found["log"]
    assert "Graph capturing finished" in found["log"]


@needs_two_cores
@pytest.mark.slow
def test_two_devices_share_bfloat16_experts(models: dict[str, Path], tmp_path: Path) -> None:
    """Teacher-forced, since a sum that rounds differently may round a key to another number."""
    one = {"model": str(models["mixtral"]), "dtype": "bfloat16"}
    two = one | {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    found = engines(tmp_path, {"one": one, "two": two}, prompts(), ANVIL_DEVICES="2")
    texts = zip(found["two"]["forced"], found["one"]["forced"], strict=True)
    distance = torch.cat([(torch.tensor(a) - torch.tensor(b)).abs() for a, b in texts])
    assert distance.max() < 0.02 and distance.median() < 1e-4


@needs_two_cores
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mixtral", ("--enable-expert-parallel",)),
        ("qwen2_moe", ()),
        ("mixtral", ("--enable-expert-parallel", "--tensor-parallel-size", "2")),
    ],
    ids=["experts", "replicated", "experts-tp2"],
)
def test_replicas_exchange_tokens(
    kind: str, options: tuple[str, ...], models: dict[str, Path], tmp_path: Path
) -> None:
    """Two replicas of all but the experts, which both compute for each other, answer requests that
    run at once with what transformers computes."""
    answers = serve(models[kind], tmp_path / "log", "--data-parallel-size", "2", *options)
    expected = distributions(models[kind], prompts(), answers)
    assert answers == [rows.argmax(-1).tolist() for rows in expected]


def serve(model: Path, log: Path, *options: str) -> list[list[int]]:
    """The tokens that a server on several devices continues the prompts with, all at once."""
    variables = {"VLLM_PLUGINS": "anvil", "ANVIL_DEVICES": "4", "ANVIL_SHARE_CORES": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = {**ENGINE, "dtype": "float32", "host": "127.0.0.1", "port": port}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    command = ("-m", "vllm.entrypoints.cli.main", "serve", str(model), "--skip-tokenizer-init")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, *command, *arguments, *options],
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ask(prompt: list[int]) -> list[int]:
        body = {
            "model": str(model),
            "prompt": prompt,
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "detokenize": False,
        }
        address, kind = f"http://127.0.0.1:{port}/v1/completions", "application/json"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    try:
        for _ in range(600):
            assert server.poll() is None, log.read_text()[-8000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        with ThreadPoolExecutor(len(prompts())) as pool:
            return list(pool.map(ask, prompts()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
