# SPDX-License-Identifier: Apache-2.0
"""Child processes, damaged copies of the package and rival plugins for the selection tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import vllm_anvil

Run = Callable[..., subprocess.CompletedProcess[str]]


def _environment(paths: tuple[Path, ...], env: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what decides about platforms, plus `env`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ANVIL_") and name not in ("VLLM_PLUGINS", "VLLM_TARGET_DEVICE")
    }
    path = os.pathsep.join([*map(str, paths), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path} | env


@pytest.fixture(scope="session")
def run() -> Run:
    """run(code_or_arguments, paths=(), **variables): a Python child, from an empty directory.

    `paths` come first on the module path, so that they shadow what is installed.
    """

    def start(
        what: str | list[str], paths: tuple[Path, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        arguments = ["-c", textwrap.dedent(what)] if isinstance(what, str) else what
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            env=_environment(paths, env),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return start


@pytest.fixture(scope="session")
def run_json(run: Run) -> Callable[..., Any]:
    """As `run`, for code that prints one JSON line last; returns its value."""

    def start(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.strip().splitlines()[-1])

    return start


@pytest.fixture(scope="session")
def installed() -> None:
    """Fails a test that needs the package's entry points when they are not installed."""
    points = metadata.entry_points(group="vllm.platform_plugins")
    if "vllm_anvil:register" not in {p.value for p in points}:
        pytest.fail("vllm-anvil is not installed in this environment; run `make build` first")


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """A module path with a copy of the package that a test may damage, `_C` included."""
    root = tmp_path / "copy"
    shutil.copytree(
        Path(vllm_anvil.__file__).parent,
        root / "vllm_anvil",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return root


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., Path]:
    """distribution(name, version, entry_points="", **modules): an installed distribution, as a
    module path: its metadata, and one module for each keyword with the source given."""

    def make(name: str, version: str, entry_points: str = "", **modules: str) -> Path:
        root = tmp_path / f"{name}-{version}"
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for module, source in modules.items():
            (root / f"{module}.py").write_text(textwrap.dedent(source))
        return root

    return make


@pytest.fixture(autouse=True)
def metadata_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have made Anvil its platform, which adds to what
    `importlib.metadata` finds."""
    ours = "vllm_anvil.plugin.seams.engine_metadata"
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if type(f).__module__ != ours])
