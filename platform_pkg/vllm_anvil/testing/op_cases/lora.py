# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.lora."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vllm_anvil.references import lora
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op, Tolerance, refused
from vllm_anvil.testing.rounding import FLOAT32

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tokens(inputs: Inputs, tokens: int, adapters: int) -> tuple[Tensor, Tensor]:
    """order and starts of tokens that have any adapter or none, the first adapter no token."""
    of = inputs.integers(tokens, high=adapters + 1) - 1
    of[of == 0] = min(1, adapters - 1)
    order = torch.argsort(of, stable=True).to(torch.int32)
    starts = torch.searchsorted(of[order.long()].contiguous(), torch.arange(adapters + 1))
    return order, starts.to(torch.int32)


def _name(
    kind: torch.dtype, weight: torch.dtype, tokens: int, sizes: Sequence[int], rank: int
) -> str:
    widths = "+".join(map(str, sizes))
    return f"{_short(kind)}-{_short(weight)}-tokens{tokens}-{widths}-rank{rank}"


def _shrink(
    kind: torch.dtype,
    weight: torch.dtype,
    tokens: int,
    depth: int,
    rank: int,
    *,
    slices: int = 1,
    adapters: int = 3,
    scale: float = 1.0,
    in_use: bool = False,
    case: str = "ordinary",
    size: float = 1.0,
    name: str = "",
) -> Case:
    def make(inputs: Inputs) -> Arguments:
        order, starts = _tokens(inputs, tokens, adapters)
        return {
            "input": inputs.normal(tokens, depth, scale=size).to(kind),
            "a": [inputs.normal(adapters, rank, depth).to(weight) for _ in range(slices)],
            "order": order,
            "starts": starts,
            "shrunk": inputs.normal(slices, tokens, rank),
            "scale": scale,
            "ranks": inputs.integers(slices, adapters, high=rank + 1, dtype=torch.int32)
            if in_use
            else None,
        }

    return Case(_name(kind, weight, tokens, [depth] * slices, rank) + name, make, case)


def _expand(
    kind: torch.dtype,
    weight: torch.dtype,
    tokens: int,
    columns: Sequence[int],
    rank: int,
    *,
    adapters: int = 3,
    offset: int = 0,
    beyond: int = 0,
    add: bool = True,
    in_use: bool = False,
    case: str = "ordinary",
    size: float = 1.0,
    name: str = "",
) -> Case:
    """`beyond`: columns of the output behind those of the slices."""

    def make(inputs: Inputs) -> Arguments:
        order, starts = _tokens(inputs, tokens, adapters)
        width = offset + sum(columns) + beyond
        return {
            "shrunk": inputs.normal(len(columns), tokens, rank, scale=size),
            "b": [inputs.normal(adapters, rank, wide).to(weight).mT for wide in columns],
            "order": order,
            "starts": starts,
            "output": inputs.normal(tokens, width, scale=size).to(kind),
            "offset": offset,
            "add": add,
            "ranks": inputs.integers(len(columns), adapters, high=rank + 1, dtype=torch.int32)
            if in_use
            else None,
        }

    return Case(_name(kind, weight, tokens, columns, rank) + name, make, case)


def _shrink_cases() -> Iterator[Case]:
    for kind, weight in itertools.product(_DTYPES, _DTYPES):
        yield _shrink(kind, weight, 5, 33, 8)
        yield _shrink(kind, weight, 7, 70, 5, slices=3, scale=0.5, in_use=True, name="-in-use")
    for of in _DTYPES:
        for tokens, depth, rank in itertools.product((1, 2, 3, 6, 70), (1, 16, 47), (1, 4, 9)):
            yield _shrink(of, of, tokens, depth, rank)
        yield _shrink(of, of, 300, 64, 16, adapters=2)
        yield _shrink(of, of, 4, 40, 256, adapters=1)
        yield _shrink(of, of, 0, 16, 8, case="empty")
        yield _shrink(of, of, 4, 0, 8, case="empty")
        yield _shrink(of, of, 4, 16, 0, case="empty")
        yield _shrink(of, of, 6, 40, 8, size=1e-4, case="extreme", name="-small")
        yield _shrink(of, of, 6, 40, 8, size=0.0, case="extreme", name="-zeros")


def _expand_cases() -> Iterator[Case]:
    for kind, weight in itertools.product(_DTYPES, _DTYPES):
        yield _expand(kind, weight, 5, [33], 8)
        yield _expand(kind, weight, 7, [70, 9, 130], 5, in_use=True, name="-in-use")
        yield _expand(kind, weight, 5, [31, 17], 8, offset=3, beyond=5, add=False, name="-instead")
    for of in _DTYPES:
        for tokens, columns, rank in itertools.product((1, 2, 3, 6, 70), (1, 16, 65), (1, 16)):
            yield _expand(of, of, tokens, [columns], rank)
        yield _expand(of, of, 300, [200, 64], 16, adapters=2)
        yield _expand(of, of, 4, [300], 256, adapters=1)
        yield _expand(of, of, 0, [16], 8, case="empty")
        yield _expand(of, of, 4, [0, 3], 8, case="empty")
        yield _expand(of, of, 4, [16], 0, case="empty")
        yield _expand(of, of, 6, [40], 8, size=1e-4, case="extreme", name="-small")
        yield _expand(of, of, 6, [40], 8, size=0.0, case="extreme", name="-zeros")


def _refused(plain: Case) -> Iterator[Case]:
    for argument, index, value in (
        ("order", 1, 5),
        ("order", 2, -1),
        ("starts", 3, 6),
        ("starts", 0, -1),
        ("starts", 1, 4),  # beyond the next
        ("ranks", 0, 9),
        ("ranks", 2, -1),
    ):

        def change(
            arguments: Arguments, argument: str = argument, index: int = index, value: int = value
        ) -> Arguments:
            arguments["order"] = torch.arange(5, dtype=torch.int32)
            arguments["starts"] = torch.tensor([0, 2, 3, 5], dtype=torch.int32)
            arguments["ranks"] = torch.full((1, 3), 8, dtype=torch.int32)
            arguments[argument].view(-1)[index] = value
            return arguments

        yield refused(plain, f"{argument}-{index}-is-{value}", change, IndexError)


def _shrink_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """A float32 sum of `depth` products and a factor: each may err by a unit of the sum of
    magnitudes."""
    bare = torch.zeros_like(arguments["shrunk"])
    changed = {
        "input": arguments["input"].abs(),
        "a": [one.abs() for one in arguments["a"]],
        "shrunk": bare,
        "scale": abs(arguments["scale"]),
    }
    lora.lora_shrink(**(arguments | changed))
    return bare * ((arguments["input"].shape[1] + 2) * FLOAT32) + 2.0**-126


def _expand_allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """The same over the ranks, with what is there; the sum is rounded once."""
    sums = arguments["output"].abs()
    changed = {
        "shrunk": arguments["shrunk"].abs(),
        "b": [one.abs() for one in arguments["b"]],
        "output": sums,
    }
    lora.lora_expand(**(arguments | changed))
    allowed = sums * ((arguments["shrunk"].shape[2] + 2) * FLOAT32) + 2.0**-126
    if dtype == torch.float32:
        return allowed
    return allowed + Tolerance(0.5).allowed(expected, dtype, arguments)


def _weight_bytes(weights: list[Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)


def _bench(tokens: int) -> tuple[Case, Case]:
    """The projection to queries, keys and values of a 1B Llama, 4 adapters of rank 16."""
    half = torch.bfloat16
    return (
        _shrink(torch.float32, half, tokens, 2048, 16, slices=3, adapters=4, name="-bench"),
        _expand(torch.float32, half, tokens, [2048, 512, 512], 16, adapters=4, name="-bench"),
    )


OPS = (
    Op(
        name="lora_shrink",
        family="lora",
        reference=lora.lora_shrink,
        cases=(*_shrink_cases(), *_refused(_shrink(_DTYPES[1], _DTYPES[1], 5, 33, 8))),
        views=("input", "shrunk"),
        allowed=_shrink_allowed,
        moved_bytes=lambda a: a["input"].nbytes + _weight_bytes(a["a"]) + a["shrunk"].nbytes,
        operations=lambda a: 2 * a["shrunk"].numel() * a["input"].shape[1],
        benchmarks=tuple(_bench(tokens)[0] for tokens in (8, 2048)),
    ),
    Op(
        name="lora_expand",
        family="lora",
        reference=lora.lora_expand,
        cases=(*_expand_cases(), *_refused(_expand(_DTYPES[1], _DTYPES[1], 5, [33], 8))),
        views=("shrunk", "output"),
        allowed=_expand_allowed,
        moved_bytes=lambda a: a["shrunk"].nbytes + _weight_bytes(a["b"]) + 2 * a["output"].nbytes,
        operations=lambda a: 2 * a["output"].numel() * a["shrunk"].shape[2],
        benchmarks=tuple(_bench(tokens)[1] for tokens in (8, 2048)),
    ),
)
