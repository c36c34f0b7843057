# SPDX-License-Identifier: Apache-2.0
"""A process of an engine is killed: the engine ends, says which, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# In the log, and before which of a worker's works.
STARTING, CAPTURING = "Loading model from scratch", "Capturing CUDA graphs"

Run = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def run(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def run(scenarios: Run) -> Run:
        folder = tmp_path_factory.mktemp("death")
        (folder / "scenarios.json").write_text(json.dumps(scenarios))
        done = subprocess.run(
            [
                *(sys.executable, str(HERE / "death_run.py"), str(folder / "scenarios.json")),
                *(str(folder), str(tiny_llama)),
            ],
            env={
                **os.environ,
                "ANVIL_DEVICES": "2",
                "ANVIL_SHARE_CORES": "1",
                "ANVIL_DEVICE_MEMORY": "1GiB",
                # For the worker's extension.
                "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            },
            capture_output=True,
            text=True,
            timeout=3000,
        )
        logs = "\n".join(file.read_text()[-3000:] for file in sorted(folder.glob("*.log")))
        assert done.returncode == 0, f"{done.stderr}\n{logs}"
        return {name: json.loads((folder / f"{name}.json").read_text()) for name in scenarios}

    return run


def check(result: dict[str, Any], words: str = "") -> None:
    """Everything is gone. The seconds that it took are printed: pytest -rP shows them."""
    print(f"{result['seconds']:.1f} s, {result['segments']} segments in /dev/shm")
    assert result["left"] == {}, result["log"]
    assert result["segments_left"] == []
    if words:
        assert result["status"] == 1
        assert words.format(victim=result["victim"]) in result["log"], result["log"]
    else:
        assert result["status"] == -9


@pytest.fixture(scope="module")
def while_it_serves(run: Any) -> Run:
    return run(
        {
            f"{victim}-{moment}": {"victim": victim, "moment": moment}
            for victim in ("rank", "front")
            for moment in ("idle", "collective")
        }
    )


def test_a_rank_dies_between_steps(while_it_serves: Run) -> None:
    check(while_it_serves["rank-idle"], "Worker proc VllmWorker-1 died unexpectedly")


def test_a_rank_dies_in_a_collective(while_it_serves: Run) -> None:
    """What waits for it hears so at once, and so does the caller."""
    result = while_it_serves["rank-collective"]
    check(result, "all_reduce on rank 0 of group")
    assert f"rank 1 (process {result['victim']}) has died" in result["log"]


@pytest.mark.parametrize("moment", ["idle", "collective"])
def test_the_front_dies(moment: str, while_it_serves: Run) -> None:
    result = while_it_serves[f"front-{moment}"]
    check(result)
    assert f"Process {result['victim']}, which started this one, has died" in result["log"]


@pytest.mark.slow
def test_deaths_while_it_starts(run: Any) -> None:
    moments = {"starting": STARTING, "capturing": CAPTURING}
    results = run(
        {
            f"{victim}-{name}": {"victim": victim, "moment": moment}
            for victim in ("rank", "front")
            for name, moment in moments.items()
        }
    )
    check(results["rank-starting"], "rank 1 (process {victim}) ended with SIGKILL")
    check(results["rank-capturing"], "VllmWorker-1 died unexpectedly")
    check(results["front-starting"])
    check(results["front-capturing"])


WAITING = """
import os, signal, sys, threading, time
from vllm import LLM
from vllm.v1.engine.exceptions import EngineDeadError

llm = LLM(sys.argv[1], max_model_len=128, kv_cache_memory_bytes=4 << 20)
(engine,) = llm.llm_engine.engine_core.resources.engine_manager.processes
os.kill(engine.pid, signal.SIGSTOP)  # so that the call below waits when it dies
threading.Timer(1, os.kill, (engine.pid, signal.SIGKILL)).start()
try:
    llm.reset_prefix_cache()
except EngineDeadError:
    print("dead, and said so")
"""


def test_a_call_into_an_engine_that_dies_ends(tiny_llama: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING, str(tiny_llama)],
        env={**os.environ, "ANVIL_DEVICE_MEMORY": "1GiB"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "dead, and said so" in done.stdout, done.stdout[-3000:] + done.stderr[-5000:]
