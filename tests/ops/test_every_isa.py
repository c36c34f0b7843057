# SPDX-License-Identifier: Apache-2.0
"""The tests of this folder once per instruction set that this machine can run.

The instruction set is fixed when a process first uses a kernel, so each has a process of its own;
the one that is active here is tested by this process.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import vllm_anvil.device  # noqa: F401  registers torch.anvil

HERE = Path(__file__).parent


def run(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=HERE.parent.parent,
        env={**os.environ, "ANVIL_ISA": isa},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


OTHERS = [isa for isa in torch.anvil.supported_isas() if isa != torch.anvil.active_isa()]


# Schemas and aliasing marks do not depend on the instruction set.
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE))
TESTS += ("--ignore", __file__, "-k", "not opcheck")


@pytest.fixture(scope="module")
def runs(at_once: Callable[..., Any]) -> Mapping[str, Future[subprocess.CompletedProcess[str]]]:
    return at_once({isa: functools.partial(run, isa, *TESTS) for isa in OTHERS})


@pytest.mark.parametrize("isa", OTHERS)
def test_ops(isa: str, runs: Mapping[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    child = runs[isa].result()
    summary = child.stdout.strip().rsplit("\n", 1)[-1]
    assert child.returncode == 0, child.stdout + child.stderr
    assert re.search(r"\b[1-9]\d* passed", summary), summary
    assert "skipped" not in summary


def test_unknown_isa_is_one_clear_error() -> None:
    program = (
        "import torch, vllm_anvil.ops.cache as cache\n"
        "pairs = torch.zeros(1, 2, dtype=torch.int64)\n"
        "cache.copy_blocks(torch.zeros(2, 4), pairs)\n"
    )
    child = run("sse9", "-c", program)
    assert child.returncode != 0
    assert "ANVIL_ISA=sse9: no such instruction set; choose one of " in child.stderr
    assert ", ".join(torch.anvil.supported_isas()) in child.stderr
