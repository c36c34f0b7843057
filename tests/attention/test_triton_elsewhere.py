# SPDX-License-Identifier: Apache-2.0
"""The Triton attention in Triton's interpreter, compiled for GPUs, and where there is no Triton."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton_geometries import COMPILATIONS, E4M3, E5M2, GEOMETRIES, Compilation

FOLDER = Path(__file__).parent
# What a program may have of a multiprocessor with the least of it, compute capability 8.6.
SHARED_MEMORY = 99 << 10


def run(*arguments: str) -> list[str]:
    """The lines that a Python process of its own prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_interpreter() -> None:
    lines = run(str(FOLDER / "interpret_attention.py"))
    float8 = {name for name, spec in GEOMETRIES.items() if spec.kv_dtype in (E4M3, E5M2)}
    assert {line.split()[0] for line in lines} == set(GEOMETRIES)
    for line in lines:
        name, outcome, *_ = line.split()
        assert outcome.rstrip(":") == ("refused" if name in float8 else "passed"), line


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, object]]:
    reports = [json.loads(line) for line in run(str(FOLDER / "compile_for_gpus.py"))]
    return {report["name"]: report for report in reports}


@pytest.mark.parametrize("one", COMPILATIONS, ids=str)
def test_gpus(compiled: dict[str, dict[str, object]], one: Compilation) -> None:
    report = compiled[str(one)]
    assert report["machine_code"]
    assert report["shared"] <= SHARED_MEMORY
    # In float32 they would round their operands.
    assert report["tensor_cores"] == (one.dtype != torch.float32)


def test_it_is_importable_without_triton_and_refuses() -> None:
    program = """
import sys
sys.modules["triton"] = None
import torch
from anvil_attention.contract import AttentionSpec
from anvil_attention.triton_kernels import triton_attention
dtype = torch.bfloat16
print(triton_attention.refuses(AttentionSpec(1, 1, 64, 64, 16, dtype, dtype, 1.0, device="cpu")))
"""
    [line] = run("-c", program)
    assert line.startswith("Triton is not installed")


def test_it_says_what_is_missing_until_a_backend_is_active() -> None:
    program = """
import torch
from anvil_attention.contract import AttentionSpec
from anvil_attention.triton_kernels import triton_attention
dtype = torch.bfloat16
spec = AttentionSpec(1, 1, 64, 64, 16, dtype, dtype, 1.0, device="anvil")
print(triton_attention.refuses(spec))
import vllm_anvil.triton
print(triton_attention.refuses(spec))
"""
    before, after = run("-c", program)
    assert "import vllm_anvil.triton" in before
    assert after == "None"
