# SPDX-License-Identifier: Apache-2.0
"""What a call must give: values from float64 arguments, dtypes from the arguments as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing.op_case import Arguments, Case, Op, changed
from vllm_anvil.testing.threads import thread_count


class Expectation:
    """One case's arguments and what the op must make of them.

    Attributes:
        arguments: as the case makes them, or with their rows in another order. Never written to.
        wide: the same with every floating tensor in float64.
        written: names of the arguments that the op writes to.
        values: float64 (or integer) results by name; empty where the call must be refused.
        dtypes: of the results.
    """

    def __init__(self, op: Op, case: Case, arguments: Arguments | None = None) -> None:
        self.arguments = case.arguments() if arguments is None else arguments
        self.wide = widened(self.arguments)
        self.written = op.written()
        with thread_count(1):
            self.values = self._reference(op, case, widened(self.arguments))
            narrow = self._reference(op, case, copied(self.arguments))
        self.dtypes = {name: value.dtype for name, value in narrow.items()}

    def _reference(self, op: Op, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        if case.raises is None:
            return results_of(op.reference(**arguments), arguments, self.written)
        try:
            op.reference(**arguments)
        except case.raises:
            return {}
        raise AssertionError(f"the reference does not raise {case.raises.__name__}")


def widened(arguments: Arguments) -> Arguments:
    """A copy with every floating tensor in float64."""
    return changed(
        arguments, lambda value: (value.double() if value.is_floating_point() else value).clone()
    )


def copied(arguments: Arguments) -> Arguments:
    """The same with copies of the tensors."""
    return changed(arguments, Tensor.clone)


def results_of(returned: Any, arguments: Arguments, written: tuple[str, ...]) -> dict[str, Tensor]:
    """Results by name: what was returned, and the arguments that were written to."""
    results: dict[str, Tensor] = {}
    if isinstance(returned, Tensor):
        results["result"] = returned
    elif returned is not None:
        results |= {f"result{i}": value for i, value in enumerate(returned)}
    for name in written:
        if isinstance(arguments.get(name), Tensor):
            results[name] = arguments[name]
    return results


def row_order(op: Op, arguments: Arguments) -> Tensor | None:
    """Another order of the batch's rows, or None where there are no two rows.

    Where arguments have different numbers of rows, those beyond the smallest number stay in place.
    """
    counts = [
        arguments[name].shape[dim]
        for name, dim in op.batch.items()
        if isinstance(arguments.get(name), Tensor)
    ]
    if not counts or min(counts) < 2:
        return None
    order = torch.randperm(min(counts), generator=torch.Generator().manual_seed(1))
    # Of two rows half of all orders change nothing.
    return order.roll(1) if torch.equal(order, torch.arange(min(counts))) else order


def in_order(tensor: Tensor, dim: int, order: Tensor) -> Tensor:
    """The tensor with its first rows along `dim` in that order."""
    rest = torch.arange(len(order), tensor.shape[dim])
    return tensor.index_select(dim, torch.cat((order, rest)))


def permuted(op: Op, arguments: Arguments, order: Tensor) -> Arguments:
    """The arguments with the rows of the batch in that order."""
    return arguments | {
        name: in_order(arguments[name], dim, order)
        for name, dim in op.batch.items()
        if isinstance(arguments.get(name), Tensor)
    }
