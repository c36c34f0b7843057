# SPDX-License-Identifier: Apache-2.0
"""`tools/test_cuda.py`, on the CPU: with torch alone, and what it says when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a machine with torch and Triton alone does not have.
ABSENT = ("vllm", "typer", "rich", "matplotlib", "pytest", "vllm_anvil._C", "vllm_anvil.device")

BLOCKER = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that finds torch and what torch needs."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANVIL_", "PYTHON"))}
    return clean | {"PYTHONPATH": str(folder)}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "test_cuda.py"), *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_blocked_modules_are_absent(bare: dict[str, str]) -> None:
    for module in ABSENT:
        done = subprocess.run([sys.executable, "-c", f"import {module}"], env=bare, check=False)
        assert done.returncode != 0


def test_all_parts_pass_with_torch_alone(bare: dict[str, str]) -> None:
    ops = ("rms_norm", "write_kv_cache")
    chosen = [argument for op in ops for argument in ("--op", op)]
    done = run(bare, "--device", "cpu", *chosen, "--batch", "3q1s100")
    assert done.returncode == 0, done.stdout + done.stderr
    for op in ops:
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"anvil::{op} ")]
        assert line.endswith("ok")
    for implementation in ("reference", "sdpa"):
        assert any(
            line.split()[:3] == ["smollm2", "3q1s100", implementation] and " us " in line
            for line in done.stdout.splitlines()
        )
    assert "generation" in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last == "parity passed, attention passed, generation passed"


def test_a_wrong_op_fails_it(bare: dict[str, str], tmp_path: Path) -> None:
    """An op that is off by one part in a hundred, planted before the script registers them."""
    plant = """
import vllm_anvil.references.norm as norm
right = norm.rms_norm
def wrong(x, *args, **kwargs):
    result = right(x, *args, **kwargs)
    return result if x.dtype.itemsize == 8 else result * 1.01
from vllm_anvil.references import registration
registration.REFERENCES["rms_norm"] = wrong
"""
    (tmp_path / "plant.py").write_text(plant)
    code = (
        "import runpy, sys; sys.argv[0] = sys.argv.pop(1)\n"
        "sys.path[:0] = ['platform_pkg', 'attention']; import plant\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = str(ROOT / "tools" / "test_cuda.py")
    path = os.pathsep.join([bare["PYTHONPATH"], str(tmp_path)])
    arguments = ["--device", "cpu", "--part", "parity", "--op", "rms_norm"]
    done = subprocess.run(
        [sys.executable, "-c", code, script, *arguments],
        env=bare | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "parity FAILED" in done.stdout


def test_without_a_gpu_it_says_so(bare: dict[str, str]) -> None:
    done = run(bare | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "finds no CUDA GPU; --device cpu runs without one" in done.stdout
