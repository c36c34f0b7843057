# SPDX-License-Identifier: Apache-2.0
"""The README's own command lines of `parity` and `bench attention`, run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = re.findall(
    r"^vllm-anvil ((?:parity|bench attention)\b[^#\n]*)", (ROOT / "README.md").read_text(), re.M
)
# A benchmark measures for as long as it is told to; how long is no part of what is shown.
SHORT = ("--min-time", "1", "--repeats", "2", "--pause", "0")


def test_there_are_some() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"parity", "bench"}


@pytest.mark.parametrize("command", COMMANDS)
def test_runs(command: str) -> None:
    words = shlex.split(command)
    words += SHORT if words[0] == "bench" else ()
    done = subprocess.run(
        [sys.executable, "-m", "vllm_anvil.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
