# SPDX-License-Identifier: Apache-2.0
"""Every op of the tables is what torch.library.opcheck asks of an op, on the CPU and on anvil."""

import importlib
import pkgutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import vllm_anvil.ops
from vllm_anvil.testing import registry
from vllm_anvil.testing.op_case import Arguments, Case, Op, changed

# The fakes are beside the wrappers.
for module in pkgutil.iter_modules(vllm_anvil.ops.__path__):
    importlib.import_module(f"vllm_anvil.ops.{module.name}")

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
OPS = [op for op in registry.load().ops.values() if op.call is None]


def representative(op: Op) -> list[Case]:
    """The first case of every set of argument types: dtypes, and which optional ones are given."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in op.cases:
        key = types(case.arguments())
        # opcheck compares by arithmetic, which torch does not have for 8-bit floats.
        narrow = any(kind in EIGHT_BITS for _, kind in key)
        if case.kind == "ordinary" and case.raises is None and not narrow:
            found.setdefault(key, case)
    return list(found.values())


def types(arguments: Arguments) -> tuple[Any, ...]:
    return tuple(
        (name, value.dtype if isinstance(value, Tensor) else type(value))
        for name, value in sorted(arguments.items())
    )


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_opcheck(op: Op, device: torch.device) -> None:
    cases = representative(op)
    assert cases
    # Tracing costs more than the calls: all checks once, and the fake on every set of types.
    for number, case in enumerate(cases):
        arguments = changed(case.arguments(), lambda value: value.to(device))
        tests = ("test_schema", "test_faketensor")
        if number == 0:
            tests += ("test_autograd_registration", "test_aot_dispatch_dynamic")
        opcheck(op.overload, (), arguments, test_utils=tests)
