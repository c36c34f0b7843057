# SPDX-License-Identifier: Apache-2.0
"""`_C` is configured against a torch for CUDA on a machine without the CUDA toolkit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build_backend"))
import target_environment  # noqa: E402

TORCH = Path(torch.__file__).parent
# What torch's own package does in such a build where CMake finds no toolkit.
NO_TOOLKIT = 'message(FATAL_ERROR "I cannot find the CUDA libraries.")\n'


@pytest.fixture
def cuda_torch(tmp_path: Path) -> Path:
    """The folder of this torch as a build for CUDA has it."""
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(TORCH / "include")
    for library in (TORCH / "lib").iterdir():
        (folder / "lib" / library.name).symlink_to(library)
    (folder / "lib" / "libtorch_cuda.so").touch()
    package = folder / "share" / "cmake" / "Torch"
    package.mkdir(parents=True)
    (package / "TorchConfig.cmake").write_text(NO_TOOLKIT)
    return folder


def configure(torch_folder: Path, build: Path) -> subprocess.CompletedProcess[str]:
    cmake = target_environment.find_tool("cmake", target_environment.BUILD_TOOLS["cmake"])
    ninja = target_environment.find_tool("ninja", target_environment.BUILD_TOOLS["ninja"])
    if cmake is None or ninja is None:
        pytest.fail("cmake and ninja are needed to build vllm-anvil; run `make dev`")
    return subprocess.run(
        [
            *(str(cmake), "-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DCMAKE_PREFIX_PATH={torch_folder / 'share' / 'cmake'}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_HOME": ""},
        check=False,
    )


def commands(build: Path, torch_folder: Path) -> dict[str, str]:
    """The compiler's command lines by source, without the places that differ."""
    found = json.loads((build / "compile_commands.json").read_text())
    return {
        entry["file"]: entry["command"]
        .replace(str(torch_folder), "TORCH")
        .replace(str(build), "BUILD")
        for entry in found
        if str(build) not in entry["file"]
    }


def test_the_toolkit_is_not_needed_and_nothing_else_changes(
    cuda_torch: Path, tmp_path: Path
) -> None:
    done = configure(cuda_torch, tmp_path / "cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without the CUDA toolkit" in done.stdout
    plain = configure(TORCH, tmp_path / "plain")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    ours = commands(tmp_path / "cuda", cuda_torch)
    assert any("torch_glue" in source for source in ours)
    assert ours == commands(tmp_path / "plain", TORCH)
