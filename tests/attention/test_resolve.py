# SPDX-License-Identifier: Apache-2.0
"""An attention that ANVIL_ATTENTION_IMPL names: how it is found."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from served_step import FILE

from anvil_attention import resolve, serving
from anvil_attention.contract import (
    AttentionImplementation,
)
from anvil_attention.reference_implementation import reference_attention

pytestmark = pytest.mark.usefixtures("nothing_served_yet")


def test_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve.resolve("reference") is reference_attention
    # The default.
    assert serving.served() is serving.served()
    assert serving.served().implementation is resolve.resolve("native")
    assert not serving.served().is_reference
    monkeypatch.setenv(serving.VARIABLE, "reference")
    assert serving.served().is_reference


def test_function_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve.resolve(f"{FILE}:right")
    assert found.name == f"{FILE}:right"
    monkeypatch.chdir(FILE.parent)
    # However a file is named, it is imported once.
    assert resolve.resolve("user_attention.py:right").function is found.function
    assert resolve.resolve(f"{FILE}:refusing").name == "refusing"


def test_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_module.py").write_text(
        "class Kernels:\n    @staticmethod\n    def mine(**arguments): return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve.resolve("users_module:Kernels.mine")
    assert found.function is sys.modules["users_module"].Kernels.mine


def test_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "anvil_attention.reference_implementation:attend", "group")
    broken = EntryPoint("broken", "no_such_module_at_all:f", "group")
    monkeypatch.setattr(resolve, "entry_points", lambda group: [entry, broken])
    assert resolve.resolve("theirs").function is reference_attention.function
    with pytest.raises(ImportError, match="entry point broken = no_such_module_at_all:f"):
        resolve.resolve("broken")
    with pytest.raises(ValueError, match="Known names are native, reference, triton, broken"):
        resolve.resolve("anothers")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_such_module:f", ImportError, "there is no module 'no_such_module'. Put its folder"),
        ("vllm_anvil.nothing:f", ImportError, "there is no module 'vllm_anvil.nothing'"),
        ("/no/such/file.py:f", ImportError, "there is no file /no/such/file.py"),
        (f"{FILE}:nothing", ValueError, "has no 'nothing'. It has .*right"),
        (f"{FILE}:right.nothing", ValueError, "has no 'right.nothing'"),
        (f"{FILE}:not_a_function", TypeError, "it is int, not a function"),
        (f"{FILE}:of_another_version", ValueError, "version 0 of the attention contract"),
        (
            "unknown",
            ValueError,
            "there is no attention 'unknown'. Known names are native,",
        ),
        (":f", ValueError, "names no attention"),
        ("module:", ValueError, "names no attention"),
    ],
)
def test_what_cannot_be_found(
    name: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=message):
        resolve.resolve(name)
    monkeypatch.setenv(serving.VARIABLE, name)
    with pytest.raises(ValueError, match=f"ANVIL_ATTENTION_IMPL={name}: .*{message}"):
        serving.served()


@pytest.mark.parametrize("place", ["breaking.py", "breaking"])
def test_module_that_cannot_be_imported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match="importing .*breaking.* failed: ModuleNotFoundError"):
        resolve.resolve(f"{place}:f")


def test_adapters_for_the_benchmark_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = AttentionImplementation("adapter", print, prepare=lambda call: lambda: None)
    monkeypatch.setattr(serving, "resolve", lambda name: adapter)
    with pytest.raises(ValueError, match="it is an adapter for the benchmark"):
        serving.served()
