# SPDX-License-Identifier: Apache-2.0
"""What cannot work says so once, by name, and the process ends."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

IMPORT = "from vllm import LLM; LLM('unused')"
START = """
import json, sys
from vllm import LLM
if __name__ == "__main__":
    LLM(**json.loads(sys.argv[1]))
    print("STARTED")
"""


UNUSABLE = [
    ("ANVIL_DEVICES", "0"),
    ("ANVIL_ISA", "mmx"),
    ("ANVIL_DEVICE_MEMORY", "-1"),
    ("ANVIL_VISIBLE_DEVICES", "4"),
    ("ANVIL_LAUNCH_BLOCKING", "maybe"),
]
Results = Mapping[str, Future[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def results(python: Any, at_once: Callable[..., Any]) -> Results:
    """What programs with such a variable come to, by its name."""
    return at_once(
        {name: functools.partial(python, IMPORT, **{name: value}) for name, value in UNUSABLE}
    )


@pytest.mark.parametrize(("name", "value"), UNUSABLE)
def test_variable_that_cannot_be_used(results: Results, name: str, value: str) -> None:
    result = results[name].result()
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert f"{name}='{value}'" in last, result.stderr
    assert result.stderr.count("Traceback") == 1, result.stderr


def test_platform_is_whole_or_not_there(python: Any) -> None:
    """After a failed start the next attempt is a fresh one, not a platform half-built."""
    result = python(
        """
import os
import vllm.platforms
os.environ["ANVIL_DEVICES"] = "0"
for _ in range(2):
    try:
        vllm.platforms.current_platform
    except ValueError as error:
        assert "ANVIL_DEVICES" in str(error)
    else:
        raise AssertionError
assert vllm.platforms._current_platform is None
del os.environ["ANVIL_DEVICES"]
assert vllm.platforms.current_platform.device_type == "anvil"
"""
    )
    assert result.returncode == 0, result.stderr


def start(python: Any, folder: Path, environ: dict[str, str], **options: Any) -> str:
    """What a program says whose engine does not start. It must end by itself, with status 1, and
    leave no process behind."""
    program, log = folder / "start.py", folder / "log"
    program.write_text(START)
    process = python.start(str(program), json.dumps(options), log=log, **environ)
    try:
        process.wait(timeout=180)
    finally:
        process.kill()
    said = log.read_text()
    assert process.returncode == 1, said
    assert "STARTED" not in said
    assert python.left_behind(process.pid) == []
    return said


# By name: the variables and options of engines that do not start, beside the model.
LONGEST = 1 << 16
STARTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "out of memory": ({"ANVIL_DEVICE_MEMORY": "4MiB"}, {"max_num_batched_tokens": 8192}),
    "missing model": ({}, {"model": "/no/such/model"}),
    "unsupported dtype": ({}, {"dtype": "float64"}),
    "longest request": (
        {"ANVIL_DEVICE_MEMORY": "2MiB"},
        {"hf_overrides": {"max_position_embeddings": LONGEST}, "max_model_len": LONGEST},
    ),
}


@pytest.fixture(scope="module")
def starts(
    python: Any,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    at_once: Callable[..., Any],
) -> Mapping[str, Future[str]]:
    """What their programs say."""

    def run(name: str) -> str:
        environ, options = STARTS[name]
        folder = tmp_path_factory.mktemp("start")
        return start(python, folder, environ, **{"model": str(tiny_model)} | options)

    return at_once({name: functools.partial(run, name) for name in STARTS})


def test_missing_model(starts: Mapping[str, Future[str]]) -> None:
    said = starts["missing model"].result()
    assert "'/no/such/model'" in said
    assert "EngineCore" not in said


def test_unsupported_dtype(starts: Mapping[str, Future[str]]) -> None:
    said = starts["unsupported dtype"].result()
    assert "dtype" in said
    assert "EngineCore" not in said


def test_longest_request_that_does_not_fit(starts: Mapping[str, Future[str]]) -> None:
    """Said before a process is started for the engine."""
    said = starts["longest request"].result()
    assert "--max-model-len to at most" in said
    assert "ANVIL_DEVICE_MEMORY" in said
    assert "EngineCore" not in said


def test_out_of_memory_while_running(starts: Mapping[str, Future[str]]) -> None:
    """Found in the engine's own process; says what is held and what to change, and both end."""
    said = starts["out of memory"].result()
    assert "OutOfMemoryError: " in said and "Out of memory on anvil:0" in said
    assert "weights" in said
    assert "ANVIL_DEVICE_MEMORY" in said
    assert "Engine core initialization failed" in said
