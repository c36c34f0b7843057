# SPDX-License-Identifier: Apache-2.0
"""The marks name kernels that there are."""

import importlib
from functools import reduce

import pytest
from checked_kernels import checked_kernels
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


def test_marks_are_found() -> None:
    assert len(checked_kernels()) > 80


@pytest.mark.parametrize("kernel", checked_kernels())
def test_mark_names_a_kernel(kernel: str) -> None:
    module, name = kernel.split(":")
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    while not isinstance(found, (JITFunction, InterpretedFunction)):
        found = found.fn  # heuristics and autotuners
    assert found.fn.__module__ == module
