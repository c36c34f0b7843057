# SPDX-License-Identifier: Apache-2.0
"""Comparing results with float64's: rounding, overflow, infinities, NaN, signs of zeros."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from vllm_anvil.testing.compare import SHARE_BINS, Comparison, compare
from vllm_anvil.testing.op_case import UNIT, Tolerance

ONE_UNIT = Tolerance(1.0)
EXACT = Tolerance(0.0)
NARROW = [torch.float32, torch.float16, torch.bfloat16]


def compared(
    actual: Tensor, expected: list[float] | Tensor, tolerance: Tolerance = ONE_UNIT
) -> Comparison:
    wide = torch.as_tensor(expected, dtype=torch.float64)
    return compare(actual, wide, tolerance.allowed, {})


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(NARROW))
def test_a_rounded_result_is_half_a_unit_off_at_most(value: float, dtype: torch.dtype) -> None:
    wide = torch.tensor([value], dtype=torch.float64)
    found = compared(wide.to(dtype), wide)
    assert found.passed
    assert found.worst <= 0.5


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from(NARROW), st.integers(2, 50), st.sampled_from([1, -1]))
def test_two_units_off_is_too_far(value: float, dtype: torch.dtype, units: int, sign: int) -> None:
    exact = torch.tensor([value]).to(dtype)
    wrong = exact.double() + sign * units * 2 * UNIT[dtype] * exact.double()
    assert not compared(wrong.to(dtype), exact.double()).passed


@pytest.mark.parametrize("dtype", NARROW)
def test_too_large_for_the_dtype(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    infinity = torch.tensor([math.inf], dtype=dtype)
    finite = torch.tensor([largest], dtype=dtype)
    assert compared(infinity, [largest * 4]).passed
    assert compared(-infinity, [-largest * 4]).passed
    # At the border either is as right as a rounding error allows.
    assert compared(infinity, [largest]).passed
    assert compared(finite, [largest * (1 + UNIT[dtype] / 2)]).passed
    assert not compared(infinity, [largest / 2]).passed
    assert not compared(finite / 2, [largest * 4]).passed
    assert not compared(-infinity, [largest * 4]).passed
    assert not compared(finite, [math.inf]).passed


def test_infinities_and_nan_stand_for_themselves() -> None:
    inf, nan = math.inf, math.nan
    values = torch.tensor([inf, -inf, nan, 1.0])
    assert compared(values, values.double()).worst == 0
    for wrong in ([-inf, -inf, nan, 1.0], [inf, -inf, 0.0, 1.0], [inf, -inf, nan, nan]):
        found = compared(torch.tensor(wrong), values.double())
        assert math.isinf(found.worst)
        assert not found.passed


def test_below_the_normal_numbers_a_unit_does_not_shrink() -> None:
    tiny = torch.finfo(torch.float16).smallest_normal * UNIT[torch.float16]
    assert compared(torch.tensor([0.0], dtype=torch.float16), [tiny / 3]).passed
    assert not compared(torch.tensor([0.0], dtype=torch.float16), [tiny * 3]).passed


def test_exact_means_zeros_with_their_sign() -> None:
    zeros = torch.tensor([0.0, -0.0])
    assert compared(zeros, [0.0, -0.0], EXACT).passed
    assert compared(zeros, [0.0, 0.0]).passed
    found = compared(zeros, [0.0, 0.0], EXACT)
    assert not found.passed
    assert found.where == (1,)


def test_names_the_worst_element() -> None:
    actual = torch.tensor([[1.0, 2.0], [3.5, 4.0]])
    found = compared(actual, [[1.0, 2.0], [3.0, 4.0]])
    assert (found.where, found.actual, found.expected, found.error) == ((1, 0), 3.5, 3.0, 0.5)
    assert str(found).startswith("element [1, 0] is 3.5 instead of 3.0, ")


def test_integers_and_shapes() -> None:
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2]), EXACT.allowed, {}).passed
    found = compare(torch.tensor([1, 2]), torch.tensor([1, 3]), EXACT.allowed, {})
    assert (found.passed, found.where, found.actual, found.expected) == (False, (1,), 2, 3)
    found = compare(torch.zeros(2, 3), torch.zeros(3, 2).double(), EXACT.allowed, {})
    assert found.problem == "its shape is [2, 3] instead of [3, 2]"
    assert compare(torch.zeros(0, 3), torch.zeros(0, 3).double(), EXACT.allowed, {}).passed


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_every_element_is_counted(offsets: list[float]) -> None:
    expected = torch.ones(len(offsets), dtype=torch.float64)
    actual = (expected + torch.tensor(offsets, dtype=torch.float64)).float()
    found = compared(actual, expected)
    assert sum(found.shares) == len(offsets)
    assert len(found.shares) == len(SHARE_BINS) + 1
    too_far = int(((actual.double() - 1).abs() > UNIT[torch.float32]).sum())
    assert sum(found.shares[SHARE_BINS.index(0) + 1 :]) == too_far
