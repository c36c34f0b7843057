# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of ops on a device and compares the results with float64's.

Nothing here prints. `check_all` is the whole of a run; vllm_anvil.testing.report sums it up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_anvil.testing import effects
from vllm_anvil.testing.compare import Comparison, compare, failed
from vllm_anvil.testing.expectation import (
    Expectation,
    in_order,
    permuted,
    results_of,
    row_order,
)
from vllm_anvil.testing.layouts import LAYOUTS, Placed, place
from vllm_anvil.testing.op_case import Arguments, Case, Op, changed
from vllm_anvil.testing.result import Result
from vllm_anvil.testing.threads import thread_count

__all__ = [
    "Outcome",
    "Peers",
    "Result",
    "call",
    "check_all",
    "check_case",
    "check_op",
    "implementation_of",
    "told",
]

Peers = Mapping[str, Callable[..., Any]]
Run = Callable[[Arguments], Any]


def check_all(
    ops: Iterable[Op],
    device: torch.device | str,
    peers: Mapping[str, Peers] | None = None,
    wanted: Callable[[Op, Case], bool] = lambda op, case: True,
    started: Callable[[Op, Case], None] = lambda op, case: None,
) -> Iterator[Result]:
    """All wanted cases of the ops.

    Args:
        peers: further implementations, by the op's qualified name.
        wanted: whether to run a case.
        started: called before a case is run, to tell what ran should the process die.
    """
    for op in ops:
        for case in op.cases:
            if wanted(op, case):
                started(op, case)
                yield from check_case(op, case, device, (peers or {}).get(op.qualified_name))


def check_op(op: Op, device: torch.device | str, peers: Peers | None = None) -> Iterator[Result]:
    """All cases of an op in all their variants, and its peers on the plain ones."""
    return check_all((op,), device, {op.qualified_name: peers or {}})


def check_case(
    op: Op, case: Case, device: torch.device | str, peers: Peers | None = None
) -> Iterator[Result]:
    """One case: contiguous, in every layout, with permuted rows, and by each peer."""
    made = functools.partial(Result, op.qualified_name, case.name, case.kind)
    device = torch.device(device)
    try:
        expectation = Expectation(op, case)
    except Exception as error:
        yield made("contiguous", "op", problem=f"its table is wrong: {told(error)}")
        return
    if case.raises is not None:
        # An index out of range stops a GPU for the rest of the process, so that such a call is made
        # on the CPU, where an op without kernels of its own is the same code.
        stops = device.type == "cuda" and issubclass(case.raises, IndexError)
        where = torch.device("cpu") if stops else device
        yield made("refused", "op", problem=_refusal(op, case, expectation, where))
        return
    plain = call(op, expectation, device)
    yield made("contiguous", "op", plain.comparisons, plain.problem)
    for variant, layouts in _variants(op, expectation.arguments):
        outcome = call(op, expectation, device, layouts)
        yield made(variant, "op", outcome.comparisons, outcome.problem)
    order = row_order(op, expectation.arguments)
    if order is not None:
        yield _permuted(op, case, device, expectation, order, plain)
    for name, peer in {**op.peers, **(peers or {})}.items():
        yield _peer(op, case, expectation, name, peer, plain)


@dataclass(frozen=True)
class Outcome:
    """One call's results on the CPU (none if it failed), how they compare, what else is wrong."""

    results: dict[str, Tensor]
    comparisons: dict[str, Comparison]
    problem: str | None


def call(
    op: Op,
    expected: Expectation,
    device: torch.device,
    layouts: Mapping[str, str] | None = None,
    peer: Run | None = None,
) -> Outcome:
    """One call, of a peer if given, with the arguments in those layouts, by default contiguous.

    Raises NotImplementedError if the peer does."""
    threads = torch.get_num_threads()
    with thread_count(1):
        placed = {
            name: place(value, (layouts or {}).get(name, "contiguous"), device)
            for name, value in expected.arguments.items()
            if isinstance(value, Tensor)
        }
        given = _given(expected.arguments, placed, device)
        try:
            with thread_count(threads):
                returned = results_of((peer or op.run)(given), given, ())
                synchronize(device)
        except Exception as error:
            if isinstance(error, NotImplementedError) and peer is not None:
                raise
            return Outcome({}, {}, told(error))
        return _outcome(op, expected, device, placed, returned)


def _given(arguments: Arguments, placed: Mapping[str, Placed], device: torch.device) -> Arguments:
    """The arguments with those that were placed; tensors in lists are copied to the device."""
    copies = changed(
        {name: value for name, value in arguments.items() if name not in placed},
        lambda value: value.to(device, copy=True),
    )
    return copies | {name: place.view for name, place in placed.items()}


def _outcome(
    op: Op,
    expected: Expectation,
    device: torch.device,
    placed: Mapping[str, Placed],
    returned: dict[str, Tensor],
) -> Outcome:
    problem = effects.wrong_device(returned, device)
    if problem is not None:
        return Outcome({}, {}, problem)
    views = {name: p.view for name, p in placed.items()}
    results = returned | results_of(None, views, expected.written)
    problem = (
        effects.wrong_names(results, expected.values)
        or effects.shared_memory(returned, {name: p.buffer for name, p in placed.items()})
        or effects.changed_memory(placed, expected.written, expected.arguments)
    )
    results = {name: value.cpu() for name, value in results.items() if name in expected.values}
    comparisons = {name: compared(op, expected, name, value) for name, value in results.items()}
    return Outcome(results, comparisons, problem)


def compared(op: Op, expected: Expectation, name: str, value: Tensor) -> Comparison:
    if value.dtype != expected.dtypes[name]:
        return failed(f"its dtype is {value.dtype} instead of {expected.dtypes[name]}")
    try:
        return compare(value, expected.values[name], op.allowed_error(name), expected.wide)
    except Exception as error:
        return failed(f"its table is wrong: what is allowed is unknown: {told(error)}")


def _variants(op: Op, arguments: Arguments) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of variants, each with the layouts of the op's view arguments."""
    sizes = {
        name: arguments[name].dim()
        for name in op.views
        if isinstance(arguments.get(name), Tensor) and arguments[name].dim()
    }
    for layout, (_, dimensions) in LAYOUTS.items():
        if layout != "contiguous" and dimensions <= max(sizes.values(), default=0):
            yield layout, dict.fromkeys(sizes, layout)
    if len(sizes) > 1:
        yield "mixed", dict(zip(sizes, list(LAYOUTS)[1:] * len(sizes), strict=False))


def _permuted(
    op: Op, case: Case, device: torch.device, expected: Expectation, order: Tensor, plain: Outcome
) -> Result:
    made = functools.partial(Result, op.qualified_name, case.name, case.kind, "permuted", "op")
    try:
        other = Expectation(op, case, permuted(op, expected.arguments, order))
        outcome = call(op, other, device)
    except Exception as error:
        return made(problem=told(error))
    problem = outcome.problem
    for name, dim in op.batch.items():
        if problem is None and all(
            name in o.results and o.comparisons[name].problem is None for o in (plain, outcome)
        ):
            before = in_order(plain.results[name], dim, order)
            problem = effects.moved_rows(name, outcome.results[name], before)
    return made(outcome.comparisons, problem)


def _peer(
    op: Op,
    case: Case,
    expected: Expectation,
    name: str,
    peer: Callable[..., Any],
    plain: Outcome,
) -> Result:
    made = functools.partial(Result, op.qualified_name, case.name, case.kind, "contiguous", name)
    try:
        outcome = call(op, expected, torch.device("cpu"), peer=lambda given: peer(**given))
    except NotImplementedError as error:
        return made(skipped=str(error))
    apart = {
        result: compare(
            value, outcome.results[result].double(), op.allowed_error(result), expected.wide
        )
        for result, value in plain.results.items()
        if result in outcome.results and value.dtype == outcome.results[result].dtype
    }
    return made(outcome.comparisons, outcome.problem, apart=apart)


def _refusal(op: Op, case: Case, expected: Expectation, device: torch.device) -> str | None:
    """Makes a call that must raise, and says what was wrong with that."""
    assert case.raises is not None
    placed = {
        name: place(value, "contiguous", device)
        for name, value in expected.arguments.items()
        if isinstance(value, Tensor)
    }
    try:
        op.run(_given(expected.arguments, placed, device))
        synchronize(device)
    except case.raises:
        return effects.changed_memory(placed, (), expected.arguments)
    except Exception as error:
        return f"it raises {told(error)} instead of {case.raises.__name__}"
    return f"it does not raise {case.raises.__name__}"


def synchronize(device: torch.device) -> None:
    """Waits for what was queued, whose errors come out here at the latest."""
    torch.get_device_module(device).synchronize()


def told(error: Exception) -> str:
    """An exception in one line for a result's problem."""
    return f"{type(error).__name__}: {error}"


def implementation_of(op: Op, device: torch.device | str) -> str:
    """What runs when the op is called on a device.

    "the table's call"; of Anvil's ops "native" or "reference"; of others "<device> kernel", or
    "fallback" where the device has none of its own.
    """
    if op.call is not None:
        return "the table's call"
    kind = torch.device(device).type
    key = torch._C._dispatch_key_for_device(kind)
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key(op.qualified_name, key)
    if op.namespace == "anvil":
        return "native" if kernel else "reference"
    return f"{kind} kernel" if kernel else "fallback"
