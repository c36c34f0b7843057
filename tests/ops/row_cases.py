# SPDX-License-Identifier: Apache-2.0
"""What the tests of ops that go row by row have in common."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing import parity
from vllm_anvil.testing.op_case import Op


def failures(op: Op, device: torch.device) -> list[str]:
    """One line for each call of an op's cases that is wrong."""
    return [
        f"{r.op} {r.case} {r.variant}: {r.problem or r.comparisons}"
        for r in parity.check_op(op, device)
        if not r.passed
    ]


def with_an_error(op: Op, factor: float) -> Op:
    """The op, with its first result (or the first argument that it writes to) off by a factor."""

    def call(**arguments: Any) -> Any:
        returned = op.run(arguments)
        if returned is None:
            arguments[op.written()[0]].mul_(factor)
            return None
        if isinstance(returned, Tensor):
            return returned * factor
        return (returned[0] * factor, *returned[1:])

    return dataclasses.replace(op, call=call)


def check_an_error_is_caught(op: Op) -> None:
    """One part in a hundred, in nearly every case with values: a few results are 0 or 1."""
    broken = with_an_error(op, 1.01)
    cases = [case for case in op.cases if case.kind == "ordinary"]
    caught = [c for c in cases if not all(r.passed for r in parity.check_case(broken, c, "cpu"))]
    assert len(caught) >= 0.9 * len(cases)


def named(ops: Iterable[Op]) -> dict[str, Op]:
    return {op.name: op for op in ops}


def check_rows_are_independent(call: Callable[[Tensor], Tensor], rows: Tensor) -> None:
    """Bit for bit: by itself, among others in another order, and for any number of threads."""
    together = call(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).to(rows.device)
    assert torch.equal(call(rows[order]), together[order])
    for row in range(0, len(rows), 7):
        assert torch.equal(call(rows[row : row + 1])[0], together[row])
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(call(rows), together)
    finally:
        torch.set_num_threads(threads)
