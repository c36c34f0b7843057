# SPDX-License-Identifier: Apache-2.0
"""Layouts: the same values elsewhere, with other memory around them that is watched."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from vllm_anvil.testing.layouts import LAYOUTS, place

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
shapes = st.lists(st.integers(0, 5), max_size=4)


@settings(deadline=None)
@given(shapes, st.sampled_from(sorted(LAYOUTS)), st.sampled_from(DTYPES))
def test_same_values_and_nothing_else(shape: list[int], layout: str, dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, shape).to(dtype)
    placed = place(values, layout, "cpu")
    assert placed.view.dtype == dtype
    assert torch.equal(placed.view.double(), values.double())
    assert not placed.surroundings_changed()
    if values.dim():
        assert placed.view.stride(-1) == 1 or values.shape[-1] <= 1
    # Writing all of the view is no change of its surroundings, and writing anything else is.
    placed.view.fill_(1)
    assert not placed.surroundings_changed()
    inside = torch.zeros(placed.buffer.shape, dtype=torch.bool)
    inside.as_strided(placed.view.shape, placed.view.stride(), placed.view.storage_offset()).fill_(
        True
    )
    for place_beside in (~inside).nonzero()[:3].flatten().tolist():
        before = placed.buffer[place_beside].clone()
        placed.buffer[place_beside] = 0
        assert placed.surroundings_changed()
        placed.buffer[place_beside] = before


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts_are_what_they_are_called(layout: str) -> None:
    view = place(torch.zeros(4, 3, 10), layout, "cpu").view
    assert view.is_contiguous() == (layout == "contiguous")
    if layout == "contiguous":
        assert view.storage_offset() * 4 % 64 == 0
        assert view.storage_offset() >= 30, "a row too far must still be memory that is watched"
    elif layout == "every_second":
        assert view.stride(0) == 2 * 30
    elif layout == "transposed":
        assert view.stride(0) < view.stride(1)
    else:
        assert view.storage_offset() * 4 % 64 != 0
        assert view.stride(1) % 2 == 1
