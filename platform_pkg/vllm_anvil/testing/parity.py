# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of ops on a device and compares the results with float64's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing.compare import Comparison, compare
from vllm_anvil.testing.layouts import LAYOUTS, Placed, place
from vllm_anvil.testing.op_case import Arguments, Case, Op


@dataclass(frozen=True)
class Result:
    """What became of one call."""

    op: str
    case: str
    kind: str
    variant: str  # a layout, or "permuted"
    implementation: str  # "op", or the name of a peer
    comparisons: dict[str, Comparison]  # by result
    problem: str | None = None  # an exception, or memory that was changed and must not be
    skipped: str | None = None  # why a peer was not asked

    @property
    def passed(self) -> bool:
        return self.problem is None and all(c.passed for c in self.comparisons.values())

    @property
    def worst(self) -> float:
        return max((c.worst for c in self.comparisons.values()), default=0.0)


def check_op(op: Op, device: torch.device | str) -> Iterator[Result]:
    """All cases of an op in all their variants, and its peers on the plain ones."""
    for case in op.cases:
        yield from check_case(op, case, device)


def check_case(op: Op, case: Case, device: torch.device | str) -> Iterator[Result]:
    for layout in LAYOUTS if op.views else ("contiguous",):
        yield _check(op, case, device, layout, "op", op.run)
    if op.batch:
        yield _check(op, case, device, "permuted", "op", op.run)
    for name, peer in op.peers.items():
        yield _check(op, case, "cpu", "contiguous", name, functools.partial(_call, peer))


def _check(
    op: Op,
    case: Case,
    device: torch.device | str,
    variant: str,
    implementation: str,
    run: Callable[[Arguments], Any],
) -> Result:
    def result(**found: Any) -> Result:
        return Result(op.qualified_name, case.name, case.kind, variant, implementation, **found)

    arguments = case.arguments()
    if variant == "permuted":
        arguments = permuted(op, arguments)
    wide = widened(arguments)
    written = op.written()
    expected = results_of(op.reference(**wide), wide, written)
    layout = variant if variant in LAYOUTS else "contiguous"
    placed = {
        name: place(value, layout if name in op.views else "contiguous", device)
        for name, value in arguments.items()
        if isinstance(value, Tensor)
    }
    given = arguments | {name: p.view for name, p in placed.items()}
    try:
        actual = results_of(run(given), given, written)
        actual = {name: value.cpu() for name, value in actual.items()}
    except NotImplementedError as error:
        if implementation != "op":
            return result(comparisons={}, skipped=str(error))
        return result(comparisons={}, problem=f"{type(error).__name__}: {error}")
    except Exception as error:
        return result(comparisons={}, problem=f"{type(error).__name__}: {error}")
    comparisons = {
        name: compare(actual[name], value, op.allowed_error(name), wide)
        for name, value in expected.items()
    }
    return result(comparisons=comparisons, problem=_changed_memory(placed, written, arguments))


def _call(function: Callable[..., Any], arguments: Arguments) -> Any:
    return function(**arguments)


def permuted(op: Op, arguments: Arguments) -> Arguments:
    """The arguments with the rows of its batch in another order."""
    named = {n: d for n, d in op.batch.items() if isinstance(arguments.get(n), Tensor)}
    rows = {arguments[name].shape[dim] for name, dim in named.items()}
    if len(rows) != 1:
        return arguments
    order = torch.randperm(rows.pop(), generator=torch.Generator().manual_seed(1))
    return arguments | {n: arguments[n].index_select(d, order) for n, d in named.items()}


def widened(arguments: Arguments) -> Arguments:
    """A copy with every floating tensor in float64."""
    return {
        name: (value.double() if value.is_floating_point() else value.clone())
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }


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


def _changed_memory(
    placed: dict[str, Placed], written: tuple[str, ...], arguments: Arguments
) -> str | None:
    for name, place_ in placed.items():
        if place_.surroundings_changed():
            return f"memory around {name} was changed"
        if name not in written:
            now, before = place_.view.cpu(), arguments[name]
            if not torch.equal(_bits(now), _bits(before)):
                return f"{name} was changed, and is not an argument that the op writes to"
    return None


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor
