# SPDX-License-Identifier: Apache-2.0
"""Timing of ops: what is measured, on what, and that a wrong result is not."""

import dataclasses

import pytest
import torch
from specimens import ADD_SCALED, SCALE_ROWS
from torch import Tensor

from vllm_anvil.testing import op_benchmark, registry
from vllm_anvil.testing.op_benchmark import REFERENCE, UNFUSED, Timing, cases_of, measure
from vllm_anvil.testing.op_case import Op

SECONDS = 0.002


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_benchmark, "CEILING_BYTES", 1 << 16)
    monkeypatch.setattr(op_benchmark, "ROTATED_BYTES", 1 << 12)


def test_measures_every_implementation_that_takes_the_case() -> None:
    def float32_alone(x: Tensor, factor: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise NotImplementedError
        return SCALE_ROWS.run({"x": x, "factor": factor})

    op = dataclasses.replace(
        SCALE_ROWS,
        peers={"other": float32_alone},
        moved_bytes=lambda arguments: 8 * arguments["x"].numel(),
        operations=lambda arguments: arguments["x"].numel(),
    )
    large, small = measure(op, "cpu", SECONDS)
    assert (large.case, small.case) == ("float32-7x33-ordinary", "bfloat16-1x8-ordinary")
    assert set(large.seconds) == {"op", REFERENCE, "other"}
    assert set(small.seconds) == {"op", REFERENCE}
    assert large.problem is None and small.problem is None
    assert (large.moved_bytes, large.operations) == (8 * 7 * 33, 7 * 33)
    assert all(seconds > 0 for seconds in large.seconds.values())
    assert large.ceiling > 0


def test_separate_ops_are_timed_on_the_ops_device() -> None:
    seen = set()

    def apart(x: Tensor, factor: Tensor) -> dict[str, Tensor]:
        seen.add(x.device.type)
        return {"result": x * factor[:, None]}

    large, _ = measure(dataclasses.replace(SCALE_ROWS, unfused=apart), "cpu", SECONDS)
    assert large.problem is None
    assert set(large.seconds) == {"op", REFERENCE, UNFUSED}
    assert large.times_as_fast_as(UNFUSED) == large.seconds[UNFUSED] / large.seconds["op"]
    assert seen == {"cpu"}


FUSED = [op for op in registry.load().ops.values() if op.unfused is not None]


@pytest.mark.parametrize("op", FUSED, ids=lambda op: op.name)
def test_separate_ops_give_what_the_op_gives(op: Op) -> None:
    """But for roundings in between; else their times would not be comparable."""
    import vllm_anvil.ops  # noqa: F401  the ops that are called
    from vllm_anvil.testing.expectation import copied, results_of

    assert op.unfused is not None
    for case in cases_of(op)[:4]:
        arguments = case.arguments()
        apart = op.unfused(**copied(arguments))
        results = results_of(op.run(arguments), arguments, op.written())
        assert results.keys() == apart.keys()
        for name, result in results.items():
            assert result.dtype == apart[name].dtype
            torch.testing.assert_close(
                apart[name].float().view(result.shape), result.float(), rtol=0.02, atol=0.02
            )


def test_there_are_fused_ops() -> None:
    assert {"fused_add_rms_norm_", "silu_and_mul", "qk_norm_rotary_write_kv_cache"} <= {
        op.name for op in FUSED
    }


def test_ratios() -> None:
    timing = Timing("op", "case", {"op": 2.0, "engine": 3.0}, moved_bytes=10, ceiling=20.0)
    assert timing.bandwidth() == 5.0
    assert timing.of_ceiling() == 0.25
    assert timing.times_as_fast_as("engine") == 1.5
    assert timing.times_as_fast_as("reference") is None
    assert Timing("op", "case", {"op": 2.0}).of_ceiling() is None


def test_a_wrong_result_is_not_timed() -> None:
    wrong = dataclasses.replace(
        SCALE_ROWS, call=lambda x, factor: SCALE_ROWS.run({"x": x, "factor": factor}) * 1.01
    )
    (first, _) = measure(wrong, "cpu", SECONDS)
    assert first.seconds == {}
    assert first.problem is not None and first.problem.startswith("result: element [")


def test_an_error_is_told() -> None:
    def fail(x: Tensor, factor: Tensor) -> Tensor:
        raise RuntimeError("no")

    (first, _) = measure(dataclasses.replace(SCALE_ROWS, call=fail), "cpu", SECONDS)
    assert first.problem == "RuntimeError: no"


def test_cases() -> None:
    assert cases_of(ADD_SCALED) == ADD_SCALED.cases
    own = dataclasses.replace(ADD_SCALED, benchmarks=SCALE_ROWS.cases[:1])
    assert cases_of(own) == SCALE_ROWS.cases[:1]


def test_arguments_take_turns_and_the_cases_own_stay() -> None:
    seen = []

    def call(total: Tensor, x: Tensor, rows: Tensor, factor: float) -> None:
        seen.append(total.data_ptr())
        ADD_SCALED.run({"total": total, "x": x, "rows": rows, "factor": factor})

    (timing,) = measure(dataclasses.replace(ADD_SCALED, call=call), "cpu", SECONDS)
    assert timing.problem is None
    timed = seen[1:]
    assert len(set(timed)) == op_benchmark.ROTATED_BYTES // op_benchmark.size(
        ADD_SCALED.cases[0].arguments()
    )
    assert timed[0] != timed[1]
