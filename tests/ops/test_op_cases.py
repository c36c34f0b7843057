# SPDX-License-Identifier: Apache-2.0
"""Ops that look up, move, turn or multiply: all cases of their tables."""

import pytest
import torch

import vllm_anvil.ops  # noqa: F401  the ops that are called
from vllm_anvil.testing import parity
from vllm_anvil.testing.op_case import Op
from vllm_anvil.testing.op_cases import (
    attention_states,
    cache,
    embedding,
    gemm,
    rotary,
    sampling,
)

FAMILIES = (attention_states, cache, embedding, gemm, rotary, sampling)
OPS = {op.name: op for family in FAMILIES for op in family.OPS}


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_cases(op: Op, device: torch.device) -> None:
    results = list(parity.check_op(op, device))
    assert len(results) >= len(op.cases)
    wrong = [f"{r.case} {r.variant}: {r.problem or r.comparisons}" for r in results if not r.passed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_cases_say_what_they_are(op: Op) -> None:
    names = [case.name for case in op.cases]
    assert len(set(names)) == len(names)
    for case in op.cases:
        arguments = case.arguments()
        sizes = [arguments[name].numel() for name in op.batch if arguments.get(name) is not None]
        if case.kind == "empty":
            continue
        assert op.moved_bytes is None or op.moved_bytes(arguments) > 0, case.name
        assert op.operations is None or op.operations(arguments) > 0, case.name
        assert all(sizes), case.name
