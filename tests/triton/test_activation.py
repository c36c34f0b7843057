# SPDX-License-Identifier: Apache-2.0
"""Who gets the backend: processes that ask for it, under the name they ask for, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import output, run

BARE = "import os, sys, logging\n"


def test_importing_the_package_imports_and_changes_nothing(tmp_path: Path) -> None:
    program = """
import vllm_anvil.triton_backend
print("torch" in sys.modules, "triton" in sys.modules)
import triton.backends
print(sorted(triton.backends.backends))
import vllm_anvil.device
print(sorted(triton.backends.backends), triton.knobs.cache.manager_class)
"""
    lines = output(tmp_path, program, BARE)
    assert lines == ["False False", "['amd', 'nvidia']", "['amd', 'nvidia'] None"]


def test_one_import_is_enough_for_a_program(tmp_path: Path) -> None:
    program = """
print(scaled(), scaled(device="cpu"))
print(triton.runtime.driver.active.get_current_target())
"""
    lines = output(tmp_path, program)
    assert lines[0] == "True True"
    assert lines[1].startswith("GPUTarget(backend='cpu', arch=")


def test_activation_is_idempotent_and_the_last_name_holds(tmp_path: Path) -> None:
    program = """
from triton.backends import backends
from vllm_anvil.triton_backend import activate
print(activate(), activate(), sorted(backends))
first = backends["cpu"]
print(activate(), backends["cpu"] is first)
print(activate("anvil"), sorted(backends))
from triton.runtime import driver
print(type(driver.active).__name__)
"""
    assert output(tmp_path, program, BARE) == [
        "True True ['amd', 'cpu', 'nvidia']",
        "True True",
        "True ['amd', 'anvil', 'nvidia']",
        "AnvilTritonDriver",
    ]


RIVAL = """
import triton.backends
from triton.backends import Backend, backends
from triton.backends.driver import DriverBase

class Rival(backends["nvidia"].driver):
    @staticmethod
    def is_active():
        return True

def add_rival(name):
    backends[name] = Backend(backends["nvidia"].compiler, Rival)
"""


def test_an_active_gpu_keeps_it_out(tmp_path: Path) -> None:
    program = """
logging.basicConfig(level=logging.DEBUG)
add_rival("gpu")
from vllm_anvil.triton_backend import activate
print(activate(), "cpu" in backends, triton.knobs.cache.manager_class)
try:
    import vllm_anvil.triton
except ImportError as error:
    print(error)
"""
    done = run(tmp_path, program, BARE + RIVAL)
    first, second = done.stdout.splitlines()
    assert first == "False False None"
    assert "Triton's backend gpu is active" in second
    assert "TRITON_DEFAULT_BACKEND=cpu chooses this one" in second
    assert "anvil's Triton backend stays out" in done.stderr


def test_a_gpu_that_comes_later_wins(tmp_path: Path) -> None:
    program = """
from vllm_anvil.triton_backend import activate
print(activate())
add_rival("gpu")
print(backends["cpu"].driver.is_active())
"""
    assert output(tmp_path, program, BARE + RIVAL) == ["True", "False"]


def test_the_user_may_choose_it_beside_a_gpu(tmp_path: Path) -> None:
    program = """
add_rival("gpu")
from vllm_anvil.triton_backend import activate
from triton.runtime import driver
print(activate(), type(driver.active).__name__)
"""
    lines = output(tmp_path, program, BARE + RIVAL, TRITON_DEFAULT_BACKEND="cpu")
    assert lines == ["True AnvilTritonDriver"]


@pytest.mark.parametrize("name", ["nvidia", "anvil"])
def test_the_user_may_choose_another(tmp_path: Path, name: str) -> None:
    program = """
from vllm_anvil.triton_backend import activate, refusal
print(activate())
print(refusal())
"""
    lines = output(tmp_path, program, BARE, TRITON_DEFAULT_BACKEND=name)
    assert lines == ["False", f"TRITON_DEFAULT_BACKEND={name} asks for another backend"]


def test_a_backend_of_that_name_is_not_replaced(tmp_path: Path) -> None:
    program = """
add_rival("cpu")
from vllm_anvil.triton_backend import activate, refusal
print(activate(), backends["cpu"].driver is Rival)
print(refusal())
"""
    lines = output(tmp_path, program, BARE + RIVAL)
    assert lines == ["False True", "Triton already has a backend named cpu (__main__)"]


def test_in_tree_backends_only(tmp_path: Path) -> None:
    """That setting skips plugins of entry points, and this is none."""
    assert output(tmp_path, "print(scaled())", TRITON_BACKENDS_IN_TREE="1") == ["True"]


def test_without_triton(tmp_path: Path) -> None:
    program = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
sys.meta_path.insert(0, Missing())
try:
    import vllm_anvil.triton
except ImportError as error:
    print(error)
"""
    (line,) = output(tmp_path, program, BARE)
    assert line == "Triton is not installed, so it cannot be used: pip install triton"
