# SPDX-License-Identifier: Apache-2.0
"""One model over several devices gives what it gives on one, and its decode steps are graphs.

All engines run in one program, on four devices that share the cores of a smaller machine.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DEVICES = 4

# In float32 the sums of a layer are made of one part for each rank, in another order than on one
# device: a few units in the last place of a logit for each of at most 30 layers.
FLOAT32_TOLERANCE = 5e-5
# What of that reaches a bfloat16 KV cache can turn a rounding there.
BFLOAT16_TOLERANCE = 1e-3

# Name: the model, what differs from the engine of one device, and the job that it is held against.
SIZES: dict[str, tuple[str, dict[str, Any], str]] = {
    "one": ("tiny_llama", {}, "one"),
    "tp2": ("tiny_llama", {"tensor_parallel_size": 2}, "one"),
    "tp4": ("tiny_llama", {"tensor_parallel_size": 4}, "one"),
    "pp2": ("tiny_llama", {"pipeline_parallel_size": 2}, "one"),
    "tp2-pp2": ("tiny_llama", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "one"),
    "dp2": ("tiny_llama", {"data_parallel_size": 2}, "one"),
    "half": ("tiny_llama", {"dtype": "bfloat16"}, "half"),
    "half-tp2-pp2": (
        "tiny_llama",
        {"dtype": "bfloat16", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        "half",
    ),
    "smollm2": ("smollm2", {}, "smollm2"),
    "smollm2-tp3": ("smollm2", {"tensor_parallel_size": 3}, "smollm2"),
}
SEVERAL = [name for name, (_, options, _) in SIZES.items() if any("parallel" in o for o in options)]

PROMPTS = (5, 200, 33, 17, 60)  # tokens; a step takes 128
FEWEST_TOKENS = 12  # that a request makes; the first one


@pytest.fixture(scope="module")
def results(
    tiny_llama: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What parallel_run.py says of each engine."""
    models = {"tiny_llama": str(tiny_llama), "smollm2": str(smollm2)}
    requests = [
        {
            "token_ids": [(7 * i + n) % 250 + 2 for i in range(n)],
            "max_tokens": FEWEST_TOKENS + 2 * number,
        }
        for number, n in enumerate(PROMPTS)
    ]
    limits = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 128}
    jobs = {
        name: {
            "engine": {"model": models[model], "dtype": "float32", **limits, **options},
            "requests": requests,
        }
        for name, (model, options, _) in SIZES.items()
    }
    folder = tmp_path_factory.mktemp("parallel")
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(HERE / "parallel_run.py"), str(folder / "jobs.json"), str(folder)],
        env={
            **os.environ,
            "ANVIL_DEVICES": str(DEVICES),
            "ANVIL_SHARE_CORES": "1",
            "ANVIL_DEVICE_MEMORY": "1GiB",
            # For rank_report.py.
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if done.returncode != 0:
        pytest.fail(f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}", pytrace=False)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in jobs}


def compare(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float, ties: bool) -> None:
    """The same tokens and log-probabilities; `ties`: but for tokens that rounding decides."""
    same = len(theirs["token_ids"])
    if ours["token_ids"] != theirs["token_ids"]:
        pairs = zip(ours["token_ids"], theirs["token_ids"], strict=True)
        same = next(i for i, (a, b) in enumerate(pairs) if a != b)
        assert ties and theirs["gaps"][same] < 2 * tolerance, (same, theirs["gaps"][same])
    for kind, length in (("logprobs", same), ("prompt_logprobs", None)):
        pairs = zip(ours[kind][:length], theirs[kind][:length], strict=True)
        assert max((abs(a - b) for a, b in pairs), default=0.0) <= tolerance, kind


@pytest.mark.parametrize("name", SEVERAL)
def test_same_as_on_one_device(name: str, results: dict[str, dict[str, Any]]) -> None:
    _, options, reference = SIZES[name]
    half = options.get("dtype") == "bfloat16"
    tolerance = BFLOAT16_TOLERANCE if half else FLOAT32_TOLERANCE
    expected = results[reference]["outputs"]
    for ours, theirs in zip(results[name]["outputs"], expected, strict=True):
        compare(ours, theirs, tolerance, ties=half)
    # Alone, on every replica, and after a step without a request.
    replicas = options.get("data_parallel_size", 1)
    for kind in ("again", "after_dummy_step"):
        assert len(results[name][kind]) == replicas
        for ours in results[name][kind]:
            compare(ours, expected[0], tolerance, ties=half)


@pytest.mark.parametrize("name", SIZES)
def test_decode_steps_are_graphs_on_every_rank(
    name: str, results: dict[str, dict[str, Any]]
) -> None:
    """The model's Python runs for the prompt alone; all tokens but the first are replays."""
    ranks = results[name]["ranks"]
    sizes = [size for key, size in SIZES[name][1].items() if key.endswith("_parallel_size")]
    assert len(ranks) == math.prod(sizes)
    assert {(rank["forwards"], rank["replays"]) for rank in ranks} == {(1, FEWEST_TOKENS - 1)}


@pytest.fixture(scope="module")
def devices() -> list[dict[str, Any]]:
    """What `vllm-anvil doctor` finds."""
    from vllm_anvil.cli import probing

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANVIL_DEVICES", str(DEVICES))
        patch.setenv("ANVIL_SHARE_CORES", "1")
        patch.setenv("ANVIL_DEVICE_MEMORY", "1GiB")
        answer = probing.ask(("device",), 120.0)["device"]
    assert "error" not in answer, answer
    return answer["devices"]


@pytest.mark.parametrize("name", SEVERAL)
def test_ranks_run_where_doctor_says(
    name: str, results: dict[str, dict[str, Any]], devices: list[dict[str, Any]]
) -> None:
    """Each rank has a device of its own, and its threads keep to that device's cores."""
    ranks = results[name]["ranks"]
    assert len({rank["device"] for rank in ranks}) == len(ranks)
    cores_of = {one["device"]: one["cores"] for one in devices}
    for rank in ranks:
        assert rank["cores"] == cores_of[rank["device"]]
        assert rank["main_thread"] == rank["cores"]
        executors = {
            name: cores for name, cores in rank["threads"].items() if name.startswith("anvil")
        }
        assert any("-x " in name for name in executors)
        assert all(set(cores) <= set(rank["cores"]) for cores in executors.values())


def test_devices_have_cores_apart_while_there_are_enough(devices: list[dict[str, Any]]) -> None:
    cores = len(os.sched_getaffinity(0))
    first = [core for one in devices[: min(DEVICES, cores)] for core in one["cores"]]
    assert len(first) == len(set(first))
