# SPDX-License-Identifier: Apache-2.0
"""torch.ops.anvil.paged_attention: its cases, its schema, and whether the cases notice mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target, for the peer)
from anvil_attention.op_cases import OPS
from vllm_anvil.testing.op_case import Arguments, Case
from vllm_anvil.testing.parity import check_case

[OP] = OPS
CASES = {case.name: case for case in OP.cases}
REFUSED = [case for case in OP.cases if case.raises is not None]


@pytest.mark.parametrize("case", OP.cases, ids=lambda case: case.name)
def test_cases(device: torch.device, case: Case) -> None:
    results = list(check_case(OP, case, device))
    assert [failure for result in results for failure in result.failures()] == []
    peers = [result for result in results if result.implementation == "triton"]
    assert [result.skipped for result in peers] == [None] * (case.raises is None)


@pytest.mark.parametrize("name", ["float32-mixed", "bfloat16-sinks", "float32-causal-per-request"])
def test_registration(device: torch.device, name: str) -> None:
    arguments = CASES[name].arguments()
    given = {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in arguments.items()
    }
    torch.library.opcheck(OP.overload, (), given)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_is_refused_is_named(case: Case) -> None:
    with pytest.raises(IndexError, match=r"(block_table\[3, 0\]|seq_lens\[3\]) is -?\d+"):
        OP.run(case.arguments())


def one_percent_too_large(arguments: Arguments) -> None:
    OP.overload(**arguments)
    arguments["output"][: int(arguments["query_start_loc"][-1])].mul_(1.01)


def _with(**changes: Callable[[Tensor], Tensor]) -> Callable[[Arguments], None]:
    def call(arguments: Arguments) -> None:
        changed = {name: change(arguments[name]) for name, change in changes.items()}
        OP.overload(**arguments | changed)

    return call


def shifted(cache: Tensor) -> Tensor:
    """Every token one place further, as with a wrong offset."""
    return cache.roll(1, dims=1)


MISTAKES = {
    "one percent": one_percent_too_large,
    "other blocks": _with(block_table=lambda table: table.roll(1, dims=0)),
    "keys of other tokens": _with(key_cache=shifted),
    "values of other tokens": _with(value_cache=shifted),
    "heads of other requests": _with(query=lambda query: query.roll(1, dims=1)),
    "one key too few": _with(seq_lens=lambda lens: lens - 1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("batch", ["decode", "mixed"])
def test_mistakes_are_noticed(mistake: str, dtype: str, batch: str) -> None:
    wrong = dataclasses.replace(OP, call=lambda **arguments: MISTAKES[mistake](arguments))
    found = iter(check_case(wrong, CASES[f"{dtype}-{batch}"], "cpu"))
    assert not next(found).passed
