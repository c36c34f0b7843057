# SPDX-License-Identifier: Apache-2.0
"""A user's attention serves a model as the reference does, and its steps are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anvil_attention.reference import paged_attention
from vllm_anvil.testing.recording import Recording, load

from .conftest import EngineRun

USERS = Path(__file__).parent.parent / "attention" / "user_attention.py"
PROMPTS = [list(range(100, 107)), list(range(300, 375)), list(range(900, 920))]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def served(
    engine_run: EngineRun, tiny_llama: Path, recorded: Path, at_once: Callable[..., Any]
) -> dict[str, Any]:
    """Reports of an engine with the reference, and of one with a user's attention that records."""
    engine = {
        "model": str(tiny_llama),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
    }
    params = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    requests = [{"token_ids": prompt, "params": params} for prompt in PROMPTS]
    plain = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "anvil"}
    users = {
        "ANVIL_ATTENTION_IMPL": f"{USERS}:right",
        "ANVIL_RECORD": str(recorded),
        "ANVIL_RECORD_STEPS": "4",
        "ANVIL_RECORD_LAYERS": "1",
    }
    runs = at_once(
        {
            "reference": functools.partial(
                engine_run, engine, requests, **plain, ANVIL_ATTENTION_IMPL="reference"
            ),
            "users": functools.partial(engine_run, engine, requests, **plain, **users),
        }
    )
    return {name: run.result() for name, run in runs.items()}


def test_same_tokens(served: dict[str, Any]) -> None:
    tokens = {
        name: [output["token_ids"] for output in report["outputs"]]
        for name, report in served.items()
    }
    assert all(len(one) == 12 for one in tokens["users"])
    assert tokens["users"] == tokens["reference"]


@pytest.fixture
def steps(served: dict[str, Any], recorded: Path) -> list[Recording]:
    return [load(path) for path in sorted(recorded.iterdir())]


def test_steps_are_recorded(steps: list[Recording]) -> None:
    assert [step.meta["step"] for step in steps] == [0, 1, 2, 3]
    assert steps[0].meta["tokens"] == 64
    assert steps[-1].meta["tokens"] == steps[-1].meta["requests"] == 3
    for step in steps:
        assert step.meta["model"] == "tiny-llama"
        wheres = {call.where.removesuffix(".self_attn.attn") for call in step.calls}
        assert "model.layers.1" in wheres
        assert "model.layers.0" not in wheres
        ops = [call.op for call in step.calls]
        assert ops.count("paged_attention") == 1
        assert "linear" not in ops


def test_recorded_attention_replays_to_its_output(steps: list[Recording]) -> None:
    for step in steps:
        [call] = [call for call in step.calls if call.op == "paged_attention"]
        given = call.op_arguments()
        for name in ("max_query_len", "max_seq_len", "k_scale", "v_scale"):
            del given[name]
        paged_attention(**given)
        torch.testing.assert_close(given["output"], call.results["output"], rtol=1e-5, atol=1e-5)
