# SPDX-License-Identifier: Apache-2.0
"""Recorded calls run again: against float64, and against what was recorded."""

import dataclasses
from typing import Any

import pytest
import torch
from specimens import ADD_SCALED, SCALE_ROWS
from torch import Tensor

from vllm_anvil.testing.op_case import Op
from vllm_anvil.testing.parity import Result
from vllm_anvil.testing.replay import check_recorded, ops_of

KNOWN = {op.qualified_name: op for op in (SCALE_ROWS, ADD_SCALED)}


@dataclasses.dataclass
class Call:
    op: str
    arguments: dict[str, Any]
    results: dict[str, Tensor]

    def op_arguments(self) -> dict[str, Any]:
        return dict(self.arguments)


def scale_call(result_factor: float = 1.0) -> Call:
    x, factor = torch.randn(4, 6), torch.randn(4)
    result = SCALE_ROWS.run({"x": x, "factor": factor}) * result_factor
    return Call("scale_rows", {"x": x, "factor": factor}, {"result": result})


def add_call() -> Call:
    arguments = ADD_SCALED.cases[0].arguments()
    after = arguments["total"].clone()
    ADD_SCALED.run({**arguments, "total": after})
    return Call("specimen::add_scaled", arguments, {"total": after})


def replayed(calls: list[Call], op: Op | None = None) -> list[Result]:
    results = []
    for found in ops_of(calls, KNOWN):
        for case in found.cases:
            recorded = calls[int(case.name.removeprefix("call "))].results
            results += check_recorded(op or found, case, recorded, "cpu")
    return results


def test_replays_to_the_recorded_results() -> None:
    results = replayed([scale_call(), add_call(), scale_call()])
    assert [line for result in results for line in result.failures()] == []
    assert [(r.op, r.case, r.variant) for r in results] == [
        ("specimen::scale_rows", "call 0", "contiguous"),
        ("specimen::scale_rows", "call 0", "recorded"),
        ("specimen::scale_rows", "call 2", "contiguous"),
        ("specimen::scale_rows", "call 2", "recorded"),
        ("specimen::add_scaled", "call 1", "contiguous"),
        ("specimen::add_scaled", "call 1", "recorded"),
    ]


def test_an_implementation_that_changed_is_found() -> None:
    wrong = dataclasses.replace(
        SCALE_ROWS, call=lambda x, factor: SCALE_ROWS.run({"x": x, "factor": factor}) * 1.01
    )
    assert [result.passed for result in replayed([scale_call()], wrong)] == [False, False]


def test_a_recording_that_is_wrong_is_found() -> None:
    right, recorded = replayed([scale_call(result_factor=1.01)])
    assert right.passed
    assert not recorded.passed
    assert ", call 0, recorded: result: element [" in recorded.failures()[0]


def test_a_recording_without_a_result_or_of_another_dtype() -> None:
    call = scale_call()
    call.results = {}
    assert "result: it was not recorded" in replayed([call])[1].failures()[0]
    call = scale_call()
    call.results = {"result": call.results["result"].double()}
    assert "its dtype is torch.float32, and was torch.float64" in replayed([call])[1].failures()[0]


def test_arguments_that_do_not_fit_the_op() -> None:
    call = scale_call()
    del call.arguments["factor"]
    (result,) = replayed([call])
    assert "its arguments cannot be used: TypeError: " in result.failures()[0]


def test_an_op_without_a_table() -> None:
    with pytest.raises(LookupError, match="call 1 of the recording is of op 'other'"):
        ops_of([scale_call(), Call("other", {}, {})], KNOWN)
