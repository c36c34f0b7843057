# SPDX-License-Identifier: Apache-2.0
"""What an op does besides computing wrong values is found, and named."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import specimens
import torch
from torch import Tensor

from vllm_anvil.testing.op_case import Case, Op, Tolerance
from vllm_anvil.testing.parity import check_op

Failures = Callable[[Op, Callable[..., Any]], list[str]]


def test_right_ops_pass_in_every_variant(scale_rows: Op, add_scaled: Op) -> None:
    for op, variants in (
        (scale_rows, {"contiguous", "offset", "every_second", "permuted"}),
        (add_scaled, {"contiguous", "offset", "every_second", "transposed", "mixed", "permuted"}),
    ):
        results = list(check_op(op, "cpu"))
        assert [line for result in results for line in result.failures()] == []
        assert {result.variant for result in results} == variants
        assert {result.case for result in results} == {case.name for case in op.cases}


def write_behind(x: Tensor, factor: Tensor) -> Tensor:
    result = specimens.scale_rows(x, factor)
    if x.numel():
        end = x.storage_offset() + sum(
            (n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)
        )
        x.as_strided((1,), (1,), end + 1).fill_(0)
    return result


def write_before(x: Tensor, factor: Tensor) -> Tensor:
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(0)
    return specimens.scale_rows(x, factor)


def write_input(x: Tensor, factor: Tensor) -> Tensor:
    result = specimens.scale_rows(x, factor)
    factor.neg_()
    return result


def write_sign_of_zero(x: Tensor, factor: Tensor) -> Tensor:
    result = specimens.scale_rows(x, factor)
    x.view(torch.int16).bitwise_xor_(1)
    return result


def give_back_the_input(x: Tensor, factor: Tensor) -> Tensor:
    x.copy_(specimens.scale_rows(x, factor))
    return x


def wrong_dtype(x: Tensor, factor: Tensor) -> Tensor:
    return specimens.scale_rows(x, factor).double()


def wrong_shape(x: Tensor, factor: Tensor) -> Tensor:
    return specimens.scale_rows(x, factor)[None]


def wrong_device(x: Tensor, factor: Tensor) -> Tensor:
    return specimens.scale_rows(x, factor).to("meta")


def two_results(x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    return specimens.scale_rows(x, factor), factor.clone()


def no_result(x: Tensor, factor: Tensor) -> None:
    specimens.scale_rows(x, factor)


def swallow_nan(x: Tensor, factor: Tensor) -> Tensor:
    return specimens.scale_rows(x, factor).nan_to_num(0.0, torch.inf, -torch.inf)


def make_nan_of_infinity(x: Tensor, factor: Tensor) -> Tensor:
    result = specimens.scale_rows(x, factor)
    return torch.where(result.isinf(), torch.nan, result)


def raise_error(x: Tensor, factor: Tensor) -> Tensor:
    raise RuntimeError("no kernel for this")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (write_behind, "memory around x was changed"),
        (write_before, "memory around x was changed"),
        (write_input, "factor was changed, and is not an argument that the op writes to"),
        (write_sign_of_zero, "x was changed, and is not an argument that the op writes to"),
        (give_back_the_input, "result shares memory with x"),
        (wrong_dtype, "result: its dtype is torch.float64 instead of torch.float32"),
        (wrong_shape, "result: its shape is [1, 7, 33] instead of [7, 33]"),
        (two_results, "it gives result0, result1 instead of result"),
        (no_result, "it gives nothing instead of result"),
        (swallow_nan, "is 0.0 instead of nan"),
        (make_nan_of_infinity, "is nan instead of "),
        (raise_error, "RuntimeError: no kernel for this"),
    ],
)
def test_is_found_and_named(
    scale_rows: Op, failures: Failures, call: Callable[..., Any], words: str
) -> None:
    found = failures(scale_rows, call)
    assert [line for line in found if words in line], found
    assert all(line.startswith("specimen::scale_rows, ") for line in found)


def test_a_result_on_another_device_is_found(scale_rows: Op, failures: Failures) -> None:
    (first, *_) = failures(scale_rows, wrong_device)
    assert "result is on meta instead of cpu" in first


def test_rows_that_depend_on_their_place_are_found(scale_rows: Op, failures: Failures) -> None:
    def drift(x: Tensor, factor: Tensor) -> Tensor:
        # Right within the tolerance, but the last bit depends on the row's place.
        result = specimens.scale_rows(x, factor)
        result[:1] = torch.nextafter(result[:1], torch.tensor(torch.inf, dtype=x.dtype))
        return result

    found = failures(dataclasses.replace(scale_rows, allowed=Tolerance(4.0)), drift)
    assert found
    assert all(", permuted: " in line for line in found)
    assert "of the batch in its first order" in found[0]


def stray_row(total: Tensor, x: Tensor, rows: Tensor, factor: float) -> None:
    specimens.add_scaled(total, x, rows, factor)
    total[int((set(range(6)) - set(rows.tolist())).pop())] += 1e-3


def last_row_twice(total: Tensor, x: Tensor, rows: Tensor, factor: float) -> None:
    specimens.add_scaled(total, x, torch.cat((rows[:-1], rows[-2:-1])), factor)


def stride_of_the_other(total: Tensor, x: Tensor, rows: Tensor, factor: float) -> None:
    strides = (total.stride(0), *x.stride()[1:])
    specimens.add_scaled(total, x.as_strided(x.shape, strides, x.storage_offset()), rows, factor)


@pytest.mark.parametrize("call", [stray_row, last_row_twice])
def test_writes_to_other_rows_are_found(
    add_scaled: Op, failures: Failures, call: Callable[..., Any]
) -> None:
    found = failures(add_scaled, call)
    assert ", contiguous: total: element [" in found[0]


def test_one_stride_for_two_arguments_is_found(add_scaled: Op, failures: Failures) -> None:
    found = failures(add_scaled, stride_of_the_other)
    assert found
    assert {line.split(", ")[2].split(":")[0] for line in found} >= {"mixed"}


def test_calls_that_must_be_refused(scale_rows: Op, failures: Failures) -> None:
    def refuse(x: Tensor, factor: Tensor) -> Tensor:
        if len(x) != len(factor):
            raise ValueError("x and factor differ in rows")
        return specimens.scale_rows(x, factor)

    case = Case(
        "rows-differ",
        lambda inputs: {"x": inputs.normal(2, 3), "factor": inputs.normal(3)},
        raises=ValueError,
    )
    op = dataclasses.replace(scale_rows, reference=refuse, call=refuse, cases=(case,))
    assert [(r.variant, r.passed) for r in check_op(op, "cpu")] == [("refused", True)]

    def spoil(x: Tensor, factor: Tensor) -> Tensor:
        x.zero_()
        raise ValueError

    def mistake(x: Tensor, factor: Tensor) -> Tensor:
        raise TypeError("what?")

    assert "does not raise ValueError" in failures(op, lambda x, factor: x.clone())[0]
    assert "raises TypeError: what? instead of ValueError" in failures(op, mistake)[0]
    assert "x was changed" in failures(op, spoil)[0]


def test_a_table_that_is_wrong_is_told_apart_from_its_op(scale_rows: Op) -> None:
    def broken(x: Tensor, factor: Tensor) -> Tensor:
        raise IndexError("no such thing")

    wrong = (
        dataclasses.replace(scale_rows, reference=broken),
        dataclasses.replace(scale_rows, allowed={"other": scale_rows.allowed}),
    )
    for op in wrong:
        result = next(iter(check_op(op, "cpu")))
        assert "its table is wrong: " in result.failures()[0]
