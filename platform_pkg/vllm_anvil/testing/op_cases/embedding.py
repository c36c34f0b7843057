# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.embedding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from vllm_anvil.references import embedding, gemm
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance, refused

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _short(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _case(
    weight: torch.dtype,
    to: torch.dtype | None,
    ids: tuple[int, ...],
    *,
    rows: int = 37,
    hidden: int = 72,
    id_dtype: torch.dtype = torch.int64,
    kind: str = "ordinary",
    scale: float = 1.0,
    bits: bool = False,
    name: str = "",
) -> Case:
    def make(inputs: Inputs) -> Arguments:
        table = (
            inputs.bits(rows, hidden, dtype=weight)
            if bits
            else inputs.normal(rows, hidden, scale=scale).to(weight)
        )
        numbers = inputs.integers(*ids, high=rows, dtype=id_dtype)
        if numbers.numel() > 1:
            numbers.view(-1)[0], numbers.view(-1)[-1] = rows - 1, 0
        return {"ids": numbers, "weight": table, "dtype": to}

    shape = "x".join(map(str, ids))
    return Case(
        f"{_short(weight)}-to-{_short(to)}-ids{shape}-hidden{hidden}{name}", make=make, kind=kind
    )


def _cases() -> list[Case]:
    cases = []
    for weight, to in itertools.product(_DTYPES, (None, *_DTYPES)):
        cases += [
            _case(weight, to, (5,), hidden=h) for h in (1, 7, 8, 16, 31, 33, 64, 129, 576)
        ] + [
            _case(weight, to, (0,), kind="empty"),
            _case(weight, to, (1,), rows=1),
            _case(weight, to, (40,), id_dtype=torch.int32, name="-int32"),
            _case(weight, to, (3, 4, 2), id_dtype=torch.int32),
            _case(weight, to, (7,), bits=True, kind="special", name="-bits"),
            _case(weight, to, (7,), scale=1e-4, kind="extreme", name="-small"),
            _case(weight, to, (7,), scale=1e38, kind="extreme", name="-large"),
        ]
    return [*cases, _case(torch.bfloat16, torch.float32, (260,), rows=500, hidden=576)]


def _refused() -> Iterator[Case]:
    plain = _case(torch.bfloat16, None, (5,))  # 37 rows
    for number in (37, -1, 2**40):

        def change(arguments: Arguments, number: int = number) -> Arguments:
            arguments["ids"][3] = number
            return arguments

        yield refused(plain, f"id{number}", change, IndexError)


def _packed(case: Case) -> Case:
    """The same with the table packed. One in float64 holds the same numbers."""

    def make(inputs: Inputs) -> Arguments:
        plain = case.make(inputs)
        rows, hidden = plain["weight"].shape
        return {
            "ids": plain["ids"],
            "packed": gemm.pack_linear(plain["weight"]),
            "rows": rows,
            "hidden": hidden,
            "dtype": plain["dtype"],
        }

    return Case(case.name, make, case.kind, case.raises)


def _packed_bytes(arguments: Arguments) -> int:
    ids, packed = arguments["ids"], arguments["packed"]
    to = arguments["dtype"] or packed.dtype
    row = arguments["hidden"] * (packed.element_size() + to.itemsize)
    return ids.nbytes + ids.numel() * row


def _moved_bytes(arguments: Arguments) -> int:
    ids, weight = arguments["ids"], arguments["weight"]
    to = arguments["dtype"] or weight.dtype
    return ids.nbytes + ids.numel() * weight.shape[1] * (weight.element_size() + to.itemsize)


OPS = (
    Op(
        name="embedding",
        family="embedding",
        reference=embedding.embedding,
        cases=(*_cases(), *_refused()),
        batch={"ids": 0, "result": 0},
        views=("ids", "weight"),
        allowed=Tolerance(0.0),  # elements move, or are rounded to the nearest
        moved_bytes=_moved_bytes,
        benchmarks=tuple(
            _case(torch.bfloat16, torch.float32, (ids,), rows=49152, hidden=576)
            for ids in (1, 32, 2048)
        ),
    ),
    Op(
        name="packed_embedding",
        family="embedding",
        reference=embedding.packed_embedding,
        cases=tuple(map(_packed, (*_cases(), *_refused()))),
        batch={"ids": 0, "result": 0},
        views=("ids",),
        allowed=Tolerance(0.0),
        moved_bytes=_packed_bytes,
        benchmarks=tuple(
            _packed(_case(torch.bfloat16, torch.float32, (ids,), rows=49152, hidden=576))
            for ids in (1, 32, 2048)
        ),
    ),
)
