# SPDX-License-Identifier: Apache-2.0
"""What cannot work says so once, by name, and the process ends."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANVIL_DEVICES", "0"),
        ("ANVIL_ISA", "mmx"),
        ("ANVIL_DEVICE_MEMORY", "-1"),
        ("ANVIL_VISIBLE_DEVICES", "4"),
        ("ANVIL_LAUNCH_BLOCKING", "maybe"),
    ],
)
def test_variable_that_cannot_be_used(python: Any, name: str, value: str) -> None:
    result = python(IMPORT, **{name: value})
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


def start(python: Any, tmp_path: Path, environ: dict[str, str], **options: Any) -> str:
    """What a program says whose engine does not start. It must end by itself, with status 1, and
    leave no process behind."""
    program, log = tmp_path / "start.py", tmp_path / "log"
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


def test_missing_model(python: Any, tmp_path: Path) -> None:
    said = start(python, tmp_path, {}, model="/no/such/model")
    assert "'/no/such/model'" in said
    assert "EngineCore" not in said


def test_unsupported_dtype(python: Any, tmp_path: Path, tiny_model: Path) -> None:
    said = start(python, tmp_path, {}, model=str(tiny_model), dtype="float64")
    assert "dtype" in said
    assert "EngineCore" not in said


def test_longest_request_that_does_not_fit(python: Any, tmp_path: Path, tiny_model: Path) -> None:
    """Said before a process is started for the engine."""
    said = start(
        python,
        tmp_path,
        {"ANVIL_DEVICE_MEMORY": "2MiB"},
        model=str(tiny_model),
        hf_overrides={"max_position_embeddings": 1 << 16},
        max_model_len=1 << 16,
    )
    assert "--max-model-len to at most" in said
    assert "ANVIL_DEVICE_MEMORY" in said
    assert "EngineCore" not in said


def test_out_of_memory_while_running(python: Any, tmp_path: Path, tiny_model: Path) -> None:
    """Found in the engine's own process; says what is held and what to change, and both end."""
    memory = {"ANVIL_DEVICE_MEMORY": "4MiB"}
    said = start(python, tmp_path, memory, model=str(tiny_model), max_num_batched_tokens=8192)
    assert "OutOfMemoryError: " in said and "Out of memory on anvil:0" in said
    assert "weights" in said
    assert "ANVIL_DEVICE_MEMORY" in said
    assert "Engine core initialization failed" in said
