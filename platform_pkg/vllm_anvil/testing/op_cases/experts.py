# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.experts."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from vllm_anvil.references import experts
from vllm_anvil.references.gemm import pack_linear, rounded, unpack_linear
from vllm_anvil.testing.op_case import UNIT, Arguments, Case, Inputs, Op, Tolerance
from vllm_anvil.testing.rounding import FLOAT32, rounding

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- choose_experts


def _choice(
    dtype: torch.dtype,
    tokens: int,
    number: int,
    choices: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    *,
    ids: torch.dtype = torch.int32,
    bias: torch.dtype | None = None,
    scale: float = 1.0,
    skip: bool = False,
    spoil: bool = False,
    few_values: bool = False,
    kind: str = "ordinary",
    name: str = "",
) -> Case:
    """`spoil`: with NaN and infinities; `few_values`: with many equal logits."""

    def make(inputs: Inputs) -> Arguments:
        logits = inputs.normal(tokens, number, scale=2.0).to(dtype)
        if few_values:
            logits = inputs.integers(tokens, number, high=3).to(dtype)
        if spoil:
            logits[0, number - 1], logits[1], logits[2, 0] = torch.nan, -torch.inf, torch.inf
            logits[3, 1] = -torch.inf
        return {
            "logits": logits,
            "weights": torch.zeros(tokens, choices),
            "ids": torch.zeros(tokens, choices, dtype=ids),
            "scoring": scoring,
            "renormalize": renormalize,
            "bias": None if bias is None else inputs.normal(number).to(bias),
            "scale": scale,
            "skip": inputs.integers(tokens, high=2).bool() if skip else None,
        }

    text = f"{_short(dtype)}-{scoring}-{tokens}x{number}-choose{choices}"
    return Case(f"{text}{'' if renormalize else '-as-they-are'}{name}", make, kind)


def _choices() -> list[Case]:
    f32 = torch.float32
    cases = [
        _choice(dtype, tokens, number, choices, scoring, renormalize)
        for dtype in _DTYPES
        for (tokens, number, choices), (scoring, renormalize) in itertools.product(
            ((1, 8, 2), (5, 60, 4), (67, 129, 8)),
            (("softmax", True), ("softmax", False), ("sigmoid", True)),
        )
    ]
    return [
        *cases,
        _choice(f32, 3, 1, 1),
        _choice(f32, 4, 7, 7, name="-all"),
        _choice(f32, 9, 33, 3, ids=torch.int64, name="-int64"),
        _choice(f32, 9, 33, 3, "sigmoid", bias=f32, scale=2.5, name="-bias-scale"),
        _choice(torch.bfloat16, 9, 33, 3, bias=torch.bfloat16, name="-bias"),
        _choice(f32, 20, 16, 2, skip=True, name="-skip"),
        _choice(torch.bfloat16, 20, 40, 6, few_values=True, name="-ties"),
        _choice(f32, 6, 20, 4, spoil=True, kind="special", name="-not-finite"),
        _choice(f32, 6, 20, 4, "sigmoid", spoil=True, kind="special", name="-not-finite"),
        _choice(f32, 0, 8, 2, kind="empty"),
        _choice(f32, 3, 8, 0, kind="empty"),
    ]


# ---------------------------------------------------------------- mixture_of_experts


def _mixture(
    input: torch.dtype,
    weight: torch.dtype,
    tokens: int,
    number: int,
    choices: int,
    depth: int,
    intermediate: int,
    *,
    activation: str = "silu",
    ids: torch.dtype = torch.int32,
    chosen: tuple[int, ...] | None = None,
    map_of: tuple[int, ...] | None = None,
    round_input: bool = False,
    keep: bool = False,
    in_use: int | None = None,
    scale: float = 1.0,
    spoil: bool = False,
    kind: str = "ordinary",
    name: str = "",
) -> Case:
    """`chosen`: every choice is one of these; `map_of`: the experts' numbers; `keep`: remainders of
    inputs that are rounded; `scale`: of the input; `spoil`: with a token of NaN."""

    def make(inputs: Inputs) -> Arguments:
        x = inputs.normal(tokens, depth, scale=scale).to(input)
        if spoil:
            x[1, depth // 2] = torch.nan
        first = inputs.normal(number, 2 * intermediate, depth, scale=depth**-0.5).to(weight)
        second = inputs.normal(number, depth, intermediate).to(weight)
        among = len(map_of) if map_of is not None else number
        if chosen is None:
            numbers = torch.stack(
                [torch.zeros(0, choices, dtype=torch.int64)]
                if tokens == 0
                else [inputs.distinct(choices, among) for _ in range(tokens)]
            ).view(tokens, choices)
        else:
            numbers = torch.tensor(chosen)[inputs.integers(tokens, choices, high=len(chosen))]
        return {
            "input": x,
            "gate_up": torch.stack([pack_linear(one) for one in first]),
            "down": torch.stack([pack_linear(one) for one in second]),
            "weights": inputs.uniform(tokens, choices),
            "ids": numbers.to(ids),
            "intermediate": intermediate,
            "activation": activation,
            "expert_map": None if map_of is None else torch.tensor(map_of, dtype=torch.int32),
            "input_dtype": weight if round_input or keep else None,
            "rows_in_use": None if in_use is None else torch.tensor([in_use], dtype=torch.int32),
            "keep_remainders": keep,
        }

    text = f"{_short(input)}-{_short(weight)}-{tokens}-{choices}of{number}-{depth}x{intermediate}"
    return Case(f"{text}{name}", make, kind)


def _mixtures() -> list[Case]:
    cases = []
    for input, weight in itertools.product(_DTYPES, _DTYPES):
        cases += [
            _mixture(input, weight, 5, 4, 2, 33, 17),
            _mixture(input, weight, 1, 8, 2, 96, 80),
        ]
    for of in _DTYPES:
        cases += [
            _mixture(torch.float32, of, 40, 6, 3, 65, 31),
            _mixture(of, of, 23, 5, 2, 40, 24, round_input=True, name="-rounded"),
            _mixture(torch.float32, of, 11, 5, 2, 41, 23, round_input=True, name="-rounded"),
        ]
    f32, bf16 = torch.float32, torch.bfloat16
    elsewhere = (-1, 2, -1, 0, -1, 1)
    return [
        *cases,
        _mixture(f32, bf16, 450, 3, 2, 48, 32, name="-several-blocks"),
        _mixture(f32, bf16, 11, 5, 2, 41, 23, keep=True, name="-mostly-rounded"),
        _mixture(f32, bf16, 30, 1, 1, 32, 16, name="-one-expert"),
        _mixture(f32, bf16, 7, 9, 2, 32, 16, chosen=(4,), name="-all-the-same"),
        _mixture(f32, f32, 13, 4, 2, 32, 16, chosen=(0, -1, 3, 99), name="-some-none"),
        _mixture(f32, f32, 13, 4, 2, 32, 16, chosen=(-1,), name="-none"),
        _mixture(f32, bf16, 13, 3, 2, 32, 16, map_of=elsewhere, name="-map"),
        _mixture(f32, bf16, 13, 3, 2, 32, 16, ids=torch.int64, name="-int64"),
        _mixture(f32, bf16, 21, 3, 2, 32, 16, in_use=21, name="-all-in-use"),
        _mixture(f32, bf16, 9, 3, 2, 32, 16, activation="gelu", name="-gelu"),
        _mixture(f32, bf16, 9, 3, 2, 32, 16, activation="gelu_tanh", name="-gelu-tanh"),
        _mixture(f32, bf16, 6, 3, 2, 20, 12, spoil=True, kind="special", name="-nan"),
        _mixture(f32, bf16, 6, 3, 2, 20, 12, scale=1e-20, kind="extreme", name="-small"),
        _mixture(f32, bf16, 6, 3, 2, 20, 12, scale=0.0, kind="extreme", name="-zeros"),
        _mixture(f32, bf16, 0, 3, 2, 20, 12, kind="empty"),
    ]


def _allowed(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """Both products err as packed_linear's does, and the activation passes on what the first erred
    by, at most 1.13 times. A value between them that is rounded may fall to the other side."""
    intermediate, depth = arguments["intermediate"], arguments["input"].shape[1]
    gate_up, down, weights = arguments["gate_up"], arguments["down"], arguments["weights"]
    round_to = arguments["input_dtype"]
    act = experts.ACTIVATIONS[arguments["activation"]]
    x = arguments["input"]
    if round_to is not None:
        x = rounded(x, round_to, arguments["keep_remainders"]).double()
    total, size = torch.zeros_like(expected), torch.zeros_like(expected)
    rows_of = experts.rows_of_experts(arguments["ids"], arguments["expert_map"], len(gate_up))
    for expert, rows in enumerate(rows_of):
        token, choice = rows.T
        first = unpack_linear(gate_up[expert], 2 * intermediate, depth)
        second = unpack_linear(down[expert], depth, intermediate).abs()
        gate, up = (x[token] @ first.T).chunk(2, -1)
        sums = x[token].abs() @ first.abs().T * ((depth + 2) * FLOAT32) + 2.0**-120
        gate_error, up_error = sums.chunk(2, -1)
        gated = (act(gate) * up).abs()
        error = 1.13 * gate_error * (up.abs() + up_error) + act(gate).abs() * up_error
        error = error + gated * (8 * FLOAT32)
        if round_to is not None:
            error = error + gated * UNIT[round_to]
        share = weights[token, choice].abs()[:, None]
        passed = error @ second.T
        added = (gated + error) @ second.T
        total.index_add_(0, token, (passed + added * ((intermediate + 2) * FLOAT32)) * share)
        size.index_add_(0, token, added * share)
    total = total + size * ((weights.shape[1] + 2) * FLOAT32) + 2.0**-120
    return total if dtype == torch.float32 else total + 2 * rounding(expected, dtype)


def _read_experts(arguments: Arguments) -> int:
    """How many experts' weights a call must read."""
    rows_of = experts.rows_of_experts(
        arguments["ids"], arguments["expert_map"], len(arguments["gate_up"])
    )
    return sum(len(rows) > 0 for rows in rows_of)


def _moved_bytes(arguments: Arguments) -> int:
    packed = arguments["gate_up"].nbytes + arguments["down"].nbytes
    read = packed // len(arguments["gate_up"]) * _read_experts(arguments)
    return int(2 * arguments["input"].nbytes + arguments["ids"].nbytes + read)


OPS = (
    Op(
        name="choose_experts",
        family="experts",
        reference=experts.choose_experts,
        cases=tuple(_choices()),
        batch={"logits": 0, "weights": 0, "ids": 0, "skip": 0},
        views=("logits",),
        allowed={"weights": Tolerance(8.0), "ids": Tolerance(0.0)},
        moved_bytes=lambda a: a["logits"].nbytes + a["weights"].nbytes + a["ids"].nbytes,
        benchmarks=tuple(_choice(torch.float32, tokens, 128, 8) for tokens in (1, 32, 512)),
    ),
    Op(
        name="mixture_of_experts",
        family="experts",
        reference=experts.mixture_of_experts,
        cases=tuple(_mixtures()),
        batch={"input": 0, "weights": 0, "ids": 0, "result": 0},
        views=("input",),
        allowed=_allowed,
        moved_bytes=_moved_bytes,
        operations=lambda a: 6 * a["ids"].numel() * a["input"].shape[1] * a["intermediate"],
        benchmarks=tuple(
            _mixture(torch.float32, torch.bfloat16, tokens, 16, 4, 1024, 512)
            for tokens in (1, 8, 512)
        ),
    ),
)
