# SPDX-License-Identifier: Apache-2.0
"""Runs recorded calls again: against float64 of the recorded arguments, and the recorded results.

What was recorded had errors of its own, within what is allowed. A result may therefore be twice
that far from the recorded one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from vllm_anvil.testing.compare import Comparison, compare, failed
from vllm_anvil.testing.expectation import Expectation
from vllm_anvil.testing.op_case import AllowedError, Arguments, Case, Op
from vllm_anvil.testing.parity import call, told
from vllm_anvil.testing.result import Result


class RecordedCall(Protocol):
    """One call as it was made, as vllm_anvil.testing.recording has it.

    Results are named as Op says: "result", "result0", or the argument that was written to.
    """

    @property
    def op(self) -> str: ...

    @property
    def results(self) -> Mapping[str, Tensor]: ...

    def op_arguments(self) -> dict[str, Any]:
        """The arguments before the call, under the names of the op's schema."""


def ops_of(calls: Iterable[RecordedCall], known: Mapping[str, Op]) -> list[Op]:
    """The ops that were recorded, each with its calls as cases "call 0", "call 1", ...

    Args:
        known: ops by qualified name.

    Raises:
        LookupError: an op that was recorded is not among them.
    """
    names = {op.name: op for op in known.values()} | dict(known)
    cases: dict[str, list[Case]] = {}
    for number, recorded in enumerate(calls):
        if recorded.op not in names:
            raise LookupError(
                f"call {number} of the recording is of op {recorded.op!r}, which no table has"
            )
        name = names[recorded.op].qualified_name
        case = Case(f"call {number}", lambda inputs, recorded=recorded: recorded.op_arguments())  # type: ignore[misc]
        cases.setdefault(name, []).append(case)
    return [dataclasses.replace(known[name], cases=tuple(found)) for name, found in cases.items()]


def check_recorded(
    op: Op, case: Case, recorded: Mapping[str, Tensor], device: torch.device | str
) -> Iterator[Result]:
    """A recorded call on a device: one result against float64, one against the recorded results."""

    def made(variant: str, comparisons: dict[str, Comparison], problem: str | None) -> Result:
        return Result(op.qualified_name, case.name, case.kind, variant, "op", comparisons, problem)

    try:
        expected = Expectation(op, case)
    except Exception as error:
        yield made("contiguous", {}, f"its arguments cannot be used: {told(error)}")
        return
    outcome = call(op, expected, torch.device(device))
    yield made("contiguous", outcome.comparisons, outcome.problem)
    if outcome.problem is None:
        comparisons = {
            name: _against_recorded(op, name, value, recorded, expected.wide)
            for name, value in outcome.results.items()
        }
        yield made("recorded", comparisons, None)


def _against_recorded(
    op: Op, name: str, value: Tensor, recorded: Mapping[str, Tensor], wide: Arguments
) -> Comparison:
    if name not in recorded:
        return failed("it was not recorded")
    before = recorded[name]
    if before.dtype != value.dtype:
        return failed(f"its dtype is {value.dtype}, and was {before.dtype}")
    exact = before.double() if before.is_floating_point() else before
    return compare(value, exact, _twice(op.allowed_error(name)), wide)


def _twice(allowed: AllowedError) -> AllowedError:
    return lambda expected, dtype, arguments: 2 * allowed(expected, dtype, arguments)
