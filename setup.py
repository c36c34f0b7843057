# SPDX-License-Identifier: Apache-2.0
"""Compiles `vllm_anvil._C` with CMake against the installed torch; see pyproject.toml."""

import json
import os
import shutil
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_backend"))
import target_environment  # noqa: E402

PACKAGE = ROOT / "platform_pkg" / "vllm_anvil"
BUILD = ROOT / "build"
MODULE = f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"

BUILD_INFO = '''# SPDX-License-Identifier: Apache-2.0
"""What `_C` was built for. Written by the build."""

TORCH_VERSION = {torch!r}
TRITON_VERSION = {triton!r}
LLVMLITE_VERSION = {llvmlite!r}
PYTHON_VERSION = {python!r}
'''


class CMakeBuild(build_ext):
    """Builds target `_C` incrementally and records what it was built for.

    In place, the module lies beside its sources and CMake works in build/. Another interpreter or
    torch gets a CMake folder of its own below build/, so that the module in place stays as it is.
    """

    def run(self) -> None:
        target = target_environment.find()
        target.require_torch()
        identity = {"prefix": sys.prefix, **asdict(target)}
        folder, output = BUILD, PACKAGE
        if not self.inplace and recorded_identity(BUILD) != identity:
            folder = BUILD / f"{sys.implementation.cache_tag}-torch-{target.torch}"
            output = folder / "python"
        configure(folder, output, target.torch_cmake_prefix(), identity)
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        run_tool("cmake", "--build", str(folder), "--target", "_C", "--parallel", jobs)
        if not (output / MODULE).is_file():
            raise SystemExit(f"the C++ build ended without an error but made no {output / MODULE}")

        final = PACKAGE if self.inplace else Path(self.build_lib, "vllm_anvil")
        if final != output:
            final.mkdir(parents=True, exist_ok=True)
            shutil.copy2(output / MODULE, final / MODULE)
        (final / "_build_info.py").write_text(BUILD_INFO.format(**asdict(target)))


def recorded_identity(folder: Path) -> dict[str, str] | None:
    """What `folder` was last configured for, or None."""
    record = folder / "anvil_target.json"
    return json.loads(record.read_text()) if record.is_file() else None


def configure(folder: Path, output: Path, torch_prefix: str, identity: dict[str, str]) -> None:
    """Run CMake's configure step; afresh where `folder` was made for another interpreter or torch.

    CMake caches what it finds inside torch, so a changed prefix alone would mix two of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fresh = [] if recorded_identity(folder) == identity else ["--fresh"]
    ninja = target_environment.find_tool("ninja", target_environment.BUILD_TOOLS["ninja"])
    if ninja is None:
        raise SystemExit("ninja is needed to build vllm-anvil: pip install ninja")
    run_tool(
        *("cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *fresh),
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DCMAKE_PREFIX_PATH={torch_prefix}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DANVIL_PYTHON_OUTPUT_DIR={output}",
    )
    (folder / "anvil_target.json").write_text(json.dumps(identity))


def run_tool(name: str, *arguments: str) -> None:
    version = target_environment.BUILD_TOOLS[name]
    path = target_environment.find_tool(name, version)
    if path is None:
        need = f"{name} {version[0]}.{version[1]} or later"
        raise SystemExit(f"{need} is needed to build vllm-anvil: pip install {name}")
    if target_environment.run_tool(path, *arguments).returncode != 0:
        raise SystemExit(f"vllm-anvil: `{name} {' '.join(arguments)}` failed; see above")


# Metadata and collected files stay out of the checkout's root, where Python would take them for
# an installed package.
(BUILD / "setuptools").mkdir(parents=True, exist_ok=True)

setup(
    install_requires=[
        *target_environment.find().requirements(),
        *("numpy", "packaging", "rich", "typer"),
    ],
    ext_modules=[Extension("vllm_anvil._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    options={
        "build": {"build_base": "build/setuptools"},
        "egg_info": {"egg_base": "build/setuptools"},
    },
)
