# SPDX-License-Identifier: Apache-2.0
"""A small mistake planted in any op of the tables is caught by its cases.

Each mistake is put around the op as it is registered. Of some mistakes an op's cases may be blind
in one call, such as a factor in a call whose results are all zero; none may pass all of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specimens import ADD_SCALED, SCALE_ROWS
from torch import Tensor

from vllm_anvil.testing import registry
from vllm_anvil.testing.expectation import Expectation, results_of
from vllm_anvil.testing.op_case import Arguments, Case, Op
from vllm_anvil.testing.parity import Result, check_case

REGISTRY = registry.load()
OPS = [*REGISTRY.ops.values(), SCALE_ROWS, ADD_SCALED]

# Changes the results of a call in place. Gets the call's arguments too.
Spoil = Callable[[dict[str, Tensor], Arguments], None]
# Changes the arguments of a call before it is made.
Mislead = Callable[[Op, Arguments], Arguments]


def has_results(op: Op) -> bool:
    """Ops that only check their arguments have none."""
    return bool(Expectation(op, ordinary(op)[0]).values)


def ordinary(op: Op) -> list[Case]:
    return [case for case in op.cases if case.kind == "ordinary" and case.raises is None]


def spoiled(op: Op, spoil: Spoil) -> Op:
    written = op.written()

    def call(**arguments: Any) -> Any:
        returned = op.run(arguments)
        spoil(results_of(returned, arguments, written), arguments)
        return returned

    return dataclasses.replace(op, call=call, writes=written)


def misled(op: Op, mislead: Mislead) -> Op:
    return dataclasses.replace(
        op, call=lambda **arguments: op.run(mislead(op, arguments)), writes=op.written()
    )


def caught(op: Op, cases: list[Case]) -> list[Result]:
    """The wrong results of the first case that shows the mistake."""
    for case in cases:
        if wrong := [result for result in check_case(op, case, "cpu") if not result.passed]:
            return wrong
    return []


def by_op(ops: list[Op]) -> Any:
    return pytest.mark.parametrize("op", ops, ids=[op.qualified_name for op in ops])


def scale(results: dict[str, Tensor], arguments: Arguments) -> None:
    for value in results.values():
        if value.is_floating_point():
            value.copy_((value.double() * 1.01).to(value.dtype))
        else:
            value += 1


def scale_one(results: dict[str, Tensor], arguments: Arguments) -> None:
    """The largest finite element of each result."""
    for value in results.values():
        if value.numel():
            size = value.double().abs().nan_to_num(0.0, 0.0)
            where = torch.unravel_index(size.argmax(), size.shape)
            element = value[where].double()
            value[where] = (element * 1.01 if value.is_floating_point() else element + 1).to(
                value.dtype
            )


WITH_RESULTS = [op for op in OPS if has_results(op)]


@by_op(WITH_RESULTS)
@pytest.mark.parametrize("spoil", [scale, scale_one])
def test_one_part_in_a_hundred(op: Op, spoil: Spoil) -> None:
    assert caught(spoiled(op, spoil), ordinary(op))


@by_op(WITH_RESULTS)
def test_in_any_single_result(op: Op) -> None:
    for name in Expectation(op, ordinary(op)[0]).values:

        def spoil(results: dict[str, Tensor], arguments: Arguments, name: str = name) -> None:
            if name in results:
                scale_one({name: results[name]}, arguments)

        wrong = caught(spoiled(op, spoil), ordinary(op))
        assert any(name in result.comparisons for result in wrong), name


def long_stride(op: Op, arguments: Arguments) -> Arguments:
    """The first view argument, with rows one element further apart."""

    def walk(x: Tensor) -> Tensor:
        strides = (x.stride(0) + 1, *x.stride()[1:])
        return x.as_strided(x.shape, strides, x.storage_offset())

    return _change_view(op, arguments, walk)


def next_row(op: Op, arguments: Arguments) -> Arguments:
    """The first view argument, a row too far."""

    def shift(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, x.stride(), x.storage_offset() + x.stride(0))

    return _change_view(op, arguments, shift)


def _change_view(op: Op, arguments: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    for name in op.views:
        x = arguments.get(name)
        if isinstance(x, Tensor) and x.dim() > 1 and x.shape[0] > 1:
            # Beyond the end of the memory torch refuses, and nothing would be tested.
            try:
                return {**arguments, name: change(x)}
            except RuntimeError:
                continue
    return arguments


@by_op([op for op in WITH_RESULTS if op.views])
@pytest.mark.parametrize("mislead", [long_stride, next_row])
def test_off_by_one_in_a_stride_or_a_row(op: Op, mislead: Mislead) -> None:
    wrong = caught(misled(op, mislead), ordinary(op))
    assert any(result.comparisons or result.problem for result in wrong)
    assert not [r for r in wrong if "its table is wrong" in (r.problem or "")]


def index_arguments(op: Op) -> list[str]:
    arguments = ordinary(op)[0].arguments()
    return [
        name
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)
    ]


@by_op([op for op in WITH_RESULTS if index_arguments(op)])
def test_off_by_one_in_one_element_of_an_index(op: Op) -> None:
    """A block table entry, a slot, a position, a token: another one that exists."""
    for name in index_arguments(op):

        def mislead(op: Op, arguments: Arguments, name: str = name) -> Arguments:
            index = arguments[name].clone()
            flat = index.view(-1)
            if flat.numel() and flat.max() > flat.min():
                place = int((flat == flat.max()).nonzero()[0])
                flat[place] -= 1
            return {**arguments, name: index}

        assert caught(misled(op, mislead), ordinary(op)), name


@by_op([op for op in WITH_RESULTS if op.batch])
def test_two_rows_exchanged(op: Op) -> None:
    def exchange(results: dict[str, Tensor], arguments: Arguments) -> None:
        for value in results.values():
            if value.dim() and value.shape[0] > 1:
                value[[0, -1]] = value[[-1, 0]]

    assert caught(spoiled(op, exchange), ordinary(op))


@by_op(WITH_RESULTS)
def test_writes_beside_an_argument(op: Op) -> None:
    def write_behind(results: dict[str, Tensor], arguments: Arguments) -> None:
        tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
        first = next(value for value in tensors if value.numel())
        steps = zip(first.shape, first.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        first.as_strided((1,), (1,), first.storage_offset() + last + 1).fill_(0)

    wrong = caught(spoiled(op, write_behind), ordinary(op))
    assert any("memory around " in (result.problem or "") for result in wrong)


@by_op(OPS)
def test_changed_inputs(op: Op) -> None:
    written = op.written()

    def change(results: dict[str, Tensor], arguments: Arguments) -> None:
        for name, value in arguments.items():
            if isinstance(value, Tensor) and name not in written and value.numel():
                place = (0,) * value.dim()
                value[place] = value[place] == 0
                return

    wrong = caught(spoiled(op, change), ordinary(op))
    assert any("is not an argument that the op writes to" in (r.problem or "") for r in wrong)


def with_nan(op: Op) -> list[Case]:
    """Cases whose results have NaNs."""
    found = []
    for case in op.cases:
        if case.kind == "special" and case.raises is None:
            values = Expectation(op, case).values.values()
            if any(value.is_floating_point() and value.isnan().any() for value in values):
                found.append(case)
    return found


@by_op([op for op in WITH_RESULTS if with_nan(op)])
def test_nan_swallowed(op: Op) -> None:
    def swallow(results: dict[str, Tensor], arguments: Arguments) -> None:
        for value in results.values():
            if value.is_floating_point():
                value.nan_to_num_(0.0, torch.inf, -torch.inf)

    wrong = caught(spoiled(op, swallow), with_nan(op))
    assert any("instead of nan" in line for result in wrong for line in result.failures())


@by_op([op for op in OPS if any(case.raises for case in op.cases)])
def test_calls_that_are_not_refused(op: Op) -> None:
    careless = dataclasses.replace(op, call=lambda **arguments: None, writes=op.written())
    cases = [case for case in op.cases if case.raises is not None]
    assert all(caught(careless, [case]) for case in cases)


def test_ops_without_results_refuse_something() -> None:
    for op in OPS:
        if not has_results(op):
            assert any(case.raises for case in op.cases), op.qualified_name
