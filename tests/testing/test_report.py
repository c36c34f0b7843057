# SPDX-License-Identifier: Apache-2.0
"""Results summed up, as text and as JSON."""

import dataclasses
import json

import pytest
import torch
from specimens import SCALE_ROWS, scale_rows
from torch import Tensor

from vllm_anvil.testing import report
from vllm_anvil.testing.parity import Result, check_all, check_op


def off(x: Tensor, factor: Tensor) -> Tensor:
    return scale_rows(x, factor) * 1.01


def nearly(x: Tensor, factor: Tensor) -> Tensor:
    return scale_rows(x.double(), factor.double() * (1 + 2**-24)).to(x.dtype)


def only_float32(x: Tensor, factor: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("it takes float32 alone")
    return nearly(x, factor)


WRONG = dataclasses.replace(SCALE_ROWS, name="wrong", call=off)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    peers = {"specimen::scale_rows": {"other": only_float32, "bad": off}}
    return list(check_all((SCALE_ROWS, WRONG), "cpu", peers))


def test_survives_json(results: list[Result]) -> None:
    text = json.dumps([report.to_json(result) for result in results], allow_nan=False)
    back = [report.from_json(data) for data in json.loads(text)]
    # NaN is not equal to itself; its spelling is.
    assert list(map(repr, back)) == list(map(repr, results))
    assert [result.passed for result in back] == [data["passed"] for data in json.loads(text)]


def test_summary_by_op(results: list[Result]) -> None:
    right, wrong = report.by_op(results)
    assert (right.op, right.cases, right.passed) == ("specimen::scale_rows", 4, True)
    assert right.calls == sum(r.op == right.op and r.counts for r in results)
    assert wrong.worst > 1000
    assert {result.op for result in wrong.failed} == {"specimen::wrong"}
    assert sum(right.shares["op"]) > sum(right.shares["other"]) > 0


def test_peers_are_shown_and_do_not_count(results: list[Result]) -> None:
    right, _ = report.by_op(results)
    assert right.passed
    assert right.peers["bad"] is not None and right.peers["bad"] > 1000
    assert 0 < right.peers["other"] < 1
    assert 0 < right.apart["other"] < 1
    assert right.apart["bad"] > 1000
    assert report.succeeded([r for r in results if r.op == right.op])
    assert not report.succeeded(results)
    skipped = [r.skipped for r in results if r.skipped]
    assert skipped == ["it takes float32 alone"]


def test_a_peer_that_took_nothing() -> None:
    def refuse(x: Tensor, factor: Tensor) -> Tensor:
        raise NotImplementedError("never")

    (summary,) = report.by_op(check_op(SCALE_ROWS, "cpu", {"other": refuse}))
    assert summary.peers == {"other": None}
    assert summary.apart == {}


def test_text(results: list[Result]) -> None:
    text = report.summary(results, failures=2)
    lines = text.splitlines()
    assert lines[0].split() == ["op", "cases", "calls", "worst", "error", "/", "allowed"]
    assert lines[1].split()[-1] == "ok"
    assert lines[2].split()[-1] == "FAILED"
    assert sum(line.startswith("specimen::wrong, ") for line in lines) == 2
    assert " is " in text and " instead of " in text
    assert "... and " in text
    assert lines[-1] == "2 ops: 1 passed, 1 failed"
