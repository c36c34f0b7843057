# SPDX-License-Identifier: Apache-2.0
"""All cases of all op tables, and of the references that run where there is no native op."""

import dataclasses

import pytest
import torch

import vllm_anvil.ops  # noqa: F401  the ops that are called
from vllm_anvil.testing import parity, registry
from vllm_anvil.testing.op_case import Op

OPS = {op.name: op for op in registry.load().ops.values() if op.namespace == "anvil"}
every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def failures(op: Op, device: torch.device) -> list[str]:
    results = list(parity.check_op(op, device))
    assert len(results) >= len(op.cases)
    return [line for result in results if result.counts for line in result.failures()]


@every_op
def test_cases(op: Op, device: torch.device) -> None:
    assert failures(op, device) == []


@every_op
def test_references(op: Op) -> None:
    """They pass as well, as they must on devices without native ops."""
    assert failures(dataclasses.replace(op, call=op.reference), torch.device("cpu")) == []


@every_op
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
