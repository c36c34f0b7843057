# SPDX-License-Identifier: Apache-2.0
"""The wheel, built once, and throw-away environments that share the engine of this one."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout, without this process's Python and Anvil settings."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ANVIL_", "VLLM_"))
    }
    return subprocess.run(
        list(map(str, command)),
        cwd=sysconfig.get_path("stdlib"),
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )


def pip(*arguments: str | Path) -> None:
    done = run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


class Environment:
    """A virtual environment with the engine, in which Anvil may be installed and damaged."""

    def __init__(self, folder: Path, engine: Path | None) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = Path(
            sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        )
        if engine is not None:
            (self.site / "engine.pth").write_text(f"{engine}\n")

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, "-c", code, **variables)

    def facts(self, code: str, **variables: str) -> tuple[dict[str, Any], str]:
        """The JSON object that `code` prints last, and what it wrote to standard error."""
        done = self.run(code, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    def pip(self, *arguments: str | Path) -> None:
        """This interpreter's pip, working on that environment, with no index to download from."""
        pip("--python", self.python, *arguments)

    def unpack(self, wheel: Path) -> None:
        """What installing does to site-packages, in a fraction of the time."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)

    def anvil_files(self) -> list[str]:
        """What of Anvil lies in site-packages."""
        found = (path.relative_to(self.site) for path in self.site.rglob("*anvil*"))
        return sorted(map(str, found))


@pytest.fixture(scope="session", name="run")
def run_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run(*command, **environment variables): a subprocess away from the checkout."""
    return run


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This environment's packages without Anvil, as a folder of links."""
    folder = tmp_path_factory.mktemp("engine")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "anvil" not in path.name:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def environment(engine: Path, tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv", engine)


@pytest.fixture
def bare_environment(tmp_path: Path) -> Environment:
    """An environment without any package: no engine, no torch."""
    return Environment(tmp_path / "bare", None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. C++ that is compiled already (`make build`) is not recompiled."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def editable_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install -e` installs."""
    folder = tmp_path_factory.mktemp("editable")
    code = f"import anvil_build; anvil_build.build_editable({str(folder)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "build_backend")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def names() -> Callable[[Path], list[str]]:
    """names(wheel): the paths inside it."""

    def read(path: Path) -> list[str]:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()

    return read
