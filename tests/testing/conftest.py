# SPDX-License-Identifier: Apache-2.0
"""Ops for testing the parity kit itself: one right, and the same one with chosen mistakes."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_anvil.references import registration

with contextlib.suppress(ImportError):  # where it was not built, the references define the ops
    import vllm_anvil.device  # noqa: F401
registration.register()

sys.path.append(str(Path(__file__).parent))

from specimens import ADD_SCALED, SCALE_ROWS  # noqa: E402

from vllm_anvil.testing.op_case import Op  # noqa: E402
from vllm_anvil.testing.parity import check_op  # noqa: E402


@pytest.fixture
def scale_rows() -> Op:
    """[rows, width] times a factor per row: a functional op."""
    return SCALE_ROWS


@pytest.fixture
def add_scaled() -> Op:
    """An op that writes to its first argument."""
    return ADD_SCALED


@pytest.fixture
def failures() -> Callable[[Op, Callable[..., Any]], list[str]]:
    """failures(op, call): what is said of `call` as the op's implementation, on the CPU."""

    def check(op: Op, call: Callable[..., Any]) -> list[str]:
        wrong = dataclasses.replace(op, call=call, writes=op.written())
        return [line for result in check_op(wrong, "cpu") for line in result.failures()]

    return check


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    """Small tensors, so that more threads only cost."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
