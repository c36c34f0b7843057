# SPDX-License-Identifier: Apache-2.0
"""setuptools' build backend, made to use the installed torch, with plain editable installs.

Build isolation stays useful (setuptools, CMake and ninja come by themselves where they are
missing) while torch is taken from the environment that pip runs in; see `target_environment`.
"""

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

import target_environment

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("platform_pkg", "attention", "communicator")
# Installed as a file even when the packages are not: torch looks for it whenever it is imported.
AUTOLOAD_MODULE = ROOT / "platform_pkg" / "vllm_anvil_autoload.py"


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """The missing build tools, once it is sure that there is a torch to build against."""
    target_environment.find().require_torch()
    required = build_meta.get_requires_for_build_wheel(config_settings)
    for tool, version in target_environment.BUILD_TOOLS.items():
        if target_environment.find_tool(tool, version) is None:
            required.append(f"{tool}>={version[0]}.{version[1]}")
    return required


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """setuptools' wheel, collected anew: deleted modules must not linger in it."""
    target_environment.find().require_torch()
    for folder in (ROOT / "build" / "setuptools").glob("lib*"):
        shutil.rmtree(folder)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Compile `_C` in place, and make a wheel that adds the source roots to `sys.path`.

    setuptools would install an import hook for a project with several source roots; a `.pth` file
    that lists them runs no code when Python starts, and type checkers and editors follow it.
    """
    build = [sys.executable, "setup.py", "build_ext", "--inplace"]
    if subprocess.run(build, cwd=ROOT).returncode != 0:
        raise SystemExit("the C++ part of vllm-anvil did not build; see the messages above")
    roots = "".join(f"{ROOT / name}\n" for name in SOURCE_ROOTS)
    files = {
        "__editable__.vllm_anvil.pth": roots.encode(),
        AUTOLOAD_MODULE.name: AUTOLOAD_MODULE.read_bytes(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        name = prepare_metadata_for_build_editable(scratch, config_settings)
        for path in sorted(Path(scratch, name).rglob("*")):
            if path.is_file():
                files[str(path.relative_to(scratch))] = path.read_bytes()
    return write_wheel(Path(wheel_directory), name.removesuffix(".dist-info"), files)


def write_wheel(folder: Path, stem: str, files: dict[str, bytes]) -> str:
    """Write `files` (path to content) as wheel `stem` (name-version); return its file name."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"{python}-{python}-{platform}"
    wheel = f"Wheel-Version: 1.0\nGenerator: anvil_build\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {**files, f"{stem}.dist-info/WHEEL": wheel.encode()}
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={digest(content)},{len(content)}" for path, content in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    name = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return name


def digest(content: bytes) -> str:
    """SHA-256 as RECORD wants it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
