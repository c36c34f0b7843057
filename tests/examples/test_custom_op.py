# SPDX-License-Identifier: Apache-2.0
"""examples/custom_op as a user has it: installed beside Anvil, and found by `vllm-anvil parity`."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPS = ("custom_op_example::relu_squared", "custom_op_example::soft_cap_")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package. Its source is copied, since building writes to it."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("custom_op")
    source = shutil.copytree(ROOT / "examples/custom_op", folder / "source")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--no-build-isolation", "--no-deps", "--target", folder / "site", source),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def parity(installed: Path, *arguments: str) -> dict[str, Any]:
    paths = [str(installed / "site"), *(path for path in sys.path if path)]
    programs = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]  # ninja
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join(programs),
        "TORCH_EXTENSIONS_DIR": str(installed / "extensions"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "vllm_anvil.cli", "parity", "--json", "-", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


# One after the other: the first compiles, the second finds what it compiled.
@pytest.mark.parametrize("device", ["cpu", "anvil"])
def test_both_ops_pass(installed: Path, device: str) -> None:
    chosen = [text for op in OPS for text in ("--op", op)]
    (run,) = parity(installed, "--device", device, *chosen)["runs"]
    assert run["distributions"] == dict.fromkeys(OPS, "custom-op-example")
    assert {result["op"] for result in run["results"]} == set(OPS)
    failed = [result for result in run["results"] if not result["passed"]]
    assert failed == []
    variants = {result["variant"] for result in run["results"]}
    assert variants == {"contiguous", "offset", "every_second", "permuted"}
    libraries = list((installed / "extensions").rglob("*.so"))
    assert len(libraries) == 1
