# SPDX-License-Identifier: Apache-2.0
"""The reference, as an implementation of the contract, against attention by its definition.

test_attention_reference.py has what depends on how the reference cuts a batch into tiles.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dense_attention import Sketch, any_spec, dense_attention, sketches
from hypothesis import HealthCheck, given, settings

from anvil_attention import verification
from anvil_attention.contract import AttentionCall, AttentionSpec
from anvil_attention.reference_implementation import reference_attention

quick = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def in_float64(call: AttentionCall) -> AttentionCall:
    """The call with a query and an output of float64."""
    return dataclasses.replace(call, query=call.query.double(), output=call.output.double())


@settings(quick, max_examples=150)
@given(sketch=sketches(any_spec()))
def test_values(sketch: Sketch) -> None:
    call = in_float64(sketch.call())
    padding = call.output[int(call.query_start_loc[-1]) :].clone()
    reference_attention(call)
    expected = dense_attention(call)
    torch.testing.assert_close(call.output[: len(expected)], expected, rtol=1e-10, atol=1e-11)
    assert torch.equal(call.output[len(expected) :].view(torch.int64), padding.view(torch.int64))


@settings(quick, max_examples=60)
@given(sketch=sketches(any_spec()))
def test_contract_in_every_dtype(device: torch.device, sketch: Sketch) -> None:
    call = sketch.call()
    placed = verification.place_call(call, device, reference_attention, output_gap=5)
    verification.check(reference_attention, placed, dense_attention(call))


SPEC = AttentionSpec(4, 2, 8, 8, 4, torch.float32, torch.float32, 0.4, device="cpu")


@pytest.mark.parametrize(
    "sketch",
    [
        Sketch(SPEC, [(3, 0), (1, 0), (2, 8)], name="no keys"),
        Sketch(SPEC, [(5, 2), (1, 1)], name="more queries than keys"),
        Sketch(SPEC, [(0, 4), (0, 0)], padding=2, name="nothing but padding"),
        Sketch(
            dataclasses.replace(SPEC, sliding_window=3),
            [(40, 90), (1, 70)],
            name="most blocks slid out of the window",
        ),
        Sketch(
            dataclasses.replace(SPEC, has_sinks=True, has_alibi=True),
            [(3, 0), (4, 30)],
            causal=[False, True],
            name="no keys but a sink",
        ),
    ],
    ids=lambda sketch: sketch.name,
)
def test_edges(device: torch.device, sketch: Sketch) -> None:
    call = sketch.call()
    placed = verification.place_call(call, device, reference_attention)
    verification.check(reference_attention, placed, dense_attention(call))


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 3, 2], r"query_start_loc\[2\] is 2; it must be at least 3"),
        ([0, 1, 6], r"query_start_loc\[2\] is 6.*at most 5, the rows of the query"),
        ([-1, 1, 2], r"query_start_loc\[0\] is -1"),
    ],
)
def test_rows_outside_of_the_query_are_refused(starts: list[int], message: str) -> None:
    call = Sketch(SPEC, [(2, 2), (3, 3)]).call()
    call.query_start_loc.copy_(torch.tensor(starts))
    with pytest.raises(IndexError, match=message):
        reference_attention(call)
