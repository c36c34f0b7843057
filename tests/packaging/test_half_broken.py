# SPDX-License-Identifier: Apache-2.0
"""A damaged installation: torch, Triton and the engine go on as if Anvil were not there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# Everything that must survive, in one process: each import of the engine takes seconds.
SURVIVE = """
import json
import torch
assert torch.ones(2).sum().item() == 2
import triton
import vllm
from vllm.platforms import current_platform
from vllm.config import VllmConfig
print(json.dumps({
    "platform": type(current_platform).__module__,
    "device": str(VllmConfig().device_config.device),
    "backend": torch._C._get_privateuse1_backend_name(),
}))
"""
WITHOUT_ANVIL = {"platform": "vllm.platforms.cpu", "device": "cpu", "backend": "privateuseone"}


def compiled_module(site: Path) -> Path:
    (file,) = (site / "vllm_anvil").glob("_C*.so")
    return file


def remove_compiled(site: Path) -> None:
    compiled_module(site).unlink()


def overwrite_compiled(site: Path) -> None:
    compiled_module(site).write_text("not a library")


def cut_compiled_short(site: Path) -> None:
    file = compiled_module(site)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove_packages(site: Path) -> None:
    for name in ("vllm_anvil", "anvil_attention", "anvil_communicator"):
        shutil.rmtree(site / name)


def empty_the_package(site: Path) -> None:
    for path in (site / "vllm_anvil").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_build_record(site: Path) -> None:
    (site / "vllm_anvil" / "_build_info.py").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_compiled, "_C"),
        (overwrite_compiled, "_C"),
        (cut_compiled_short, "_C"),
        (remove_build_record, "_build_info"),
        (remove_packages, "vllm_anvil"),
        (empty_the_package, "register"),
    ],
)
def test_engine_goes_on_and_says_why(
    environment, wheel: Path, damage: Callable[[Path], None], words: str
) -> None:
    environment.unpack(wheel)
    damage(environment.site)
    facts, errors = environment.facts(SURVIVE)
    assert facts == WITHOUT_ANVIL
    assert words in errors


def test_editable_install_of_a_deleted_checkout(environment, editable_wheel: Path) -> None:
    environment.unpack(editable_wheel)
    (path_file,) = environment.site.glob("*anvil*.pth")
    path_file.write_text("/nonexistent/checkout/platform_pkg\n")
    facts, _ = environment.facts(SURVIVE)
    assert facts == WITHOUT_ANVIL


def test_asking_a_missing_package_for_the_device_is_an_error(environment, wheel: Path) -> None:
    environment.unpack(wheel)
    remove_packages(environment.site)
    done = environment.run("import torch", ANVIL_AUTOLOAD="1")
    assert done.returncode == 1
    assert "vllm_anvil" in done.stderr


def test_built_for_another_torch(environment, wheel: Path) -> None:
    """One clear error, with both versions and the remedy, from the engine and the device."""
    import torch

    environment.unpack(wheel)
    (environment.site / "vllm_anvil" / "_build_info.py").write_text(
        'TORCH_VERSION = "1.99.0"\nTRITON_VERSION = LLVMLITE_VERSION = PYTHON_VERSION = ""\n'
    )
    facts, errors = environment.facts(SURVIVE)
    assert facts == WITHOUT_ANVIL
    (from_engine,) = [line for line in errors.splitlines() if "1.99.0" in line]

    # It must come before `_C` is loaded, which may not even end with an exception.
    overwrite_compiled(environment.site)
    done = environment.run("import vllm_anvil.device")
    assert done.returncode == 1
    from_device = done.stderr.strip().splitlines()[-1]
    for message in (from_engine, from_device):
        for word in ("1.99.0", torch.__version__, "pip install", "--no-build-isolation"):
            assert word in message
