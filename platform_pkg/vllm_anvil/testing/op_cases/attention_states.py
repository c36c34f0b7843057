# SPDX-License-Identifier: Apache-2.0
"""Cases of vllm_anvil.ops.attention_states."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_anvil.references import attention_states
from vllm_anvil.testing.op_case import Arguments, Case, Inputs, Op
from vllm_anvil.testing.rounding import FLOAT32, rounding

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _without_keys(output: Tensor, lse: Tensor, tokens: slice) -> None:
    """A part that saw no keys: whatever its output holds does not count."""
    lse[:, tokens] = -torch.inf
    output[tokens] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0], dtype=output.dtype)[
        torch.arange(output.shape[2]) % 4
    ]


def _case(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    head_size: int,
    *,
    kind: str = "ordinary",
    output_scale: float = 1.0,
    lse_scale: float = 2.0,
    one_sided: bool = False,
    name: str = "",
) -> Case:
    def make(inputs: Inputs) -> Arguments:
        outputs = [
            inputs.normal(tokens, heads, head_size, scale=output_scale).to(dtype) for _ in range(2)
        ]
        lses = [inputs.normal(heads, tokens, scale=lse_scale) + 3.0 for _ in range(2)]
        if one_sided:
            third = tokens // 3
            _without_keys(outputs[0], lses[0], slice(0, 2 * third))
            _without_keys(outputs[1], lses[1], slice(third, 3 * third))
        return {
            "prefix_output": outputs[0],
            "prefix_lse": lses[0],
            "suffix_output": outputs[1],
            "suffix_lse": lses[1],
        }

    short = str(dtype).removeprefix("torch.")
    return Case(f"{short}-tokens{tokens}-heads{heads}-head{head_size}{name}", make, kind)


def _nan_case(dtype: torch.dtype) -> Case:
    """NaN and infinities in parts that count go through."""
    plain = _case(dtype, 6, 3, 33)

    def make(inputs: Inputs) -> Arguments:
        arguments = plain.make(inputs)
        arguments["prefix_output"][1, 2, 5] = torch.nan
        arguments["suffix_output"][2, 0, 32] = torch.inf
        arguments["prefix_output"][3, 1, 16] = -torch.inf
        arguments["suffix_lse"][1, 4] = torch.nan
        return arguments

    return Case(f"{str(dtype).removeprefix('torch.')}-nan", make, "special")


def _cases() -> list[Case]:
    cases = []
    for dtype in _DTYPES:
        cases += [_case(dtype, 5, 3, size) for size in (1, 7, 16, 31, 64, 72, 130)] + [
            _case(dtype, 0, 3, 64, kind="empty"),
            _case(dtype, 1, 1, 128),
            _case(dtype, 1, 9, 64),
            _case(dtype, 70, 4, 80),
            _case(dtype, 9, 2, 40, one_sided=True, kind="special", name="-one-sided"),
            _case(dtype, 8, 3, 40, lse_scale=200.0, kind="extreme", name="-far-apart"),
            _case(dtype, 8, 3, 40, lse_scale=1e30, kind="extreme", name="-very-far-apart"),
            _case(dtype, 8, 3, 40, lse_scale=0.0, name="-same-sums"),
            _case(dtype, 8, 3, 40, output_scale=1e-6, kind="extreme", name="-small-outputs"),
            _nan_case(dtype),
        ]
    large = _case(torch.float32, 8, 3, 40, output_scale=1e37, kind="extreme", name="-large-outputs")
    return [*cases, large]


def _allowed_output(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """One rounding, and float32's own error: of both weighted outputs, which may cancel, and of
    their weights, whose exponents are differences of two sums."""
    sides = [arguments["prefix_output"].abs(), arguments["suffix_output"].abs()]
    lses = torch.stack((arguments["prefix_lse"], arguments["suffix_lse"]))
    shares = torch.softmax(lses, 0).nan_to_num(0.0)
    apart = (lses[0] - lses[1]).abs().nan_to_num(0.0, posinf=0.0).clamp(max=104.0)
    magnitude = torch.zeros_like(sides[0])
    for side, share in zip(sides, shares, strict=True):
        weight = (share * (apart + 8.0)).T[..., None]
        counted = torch.where(weight > 0, side * weight, 0.0)
        magnitude += counted.nan_to_num(0.0, posinf=0.0)
        # Below exp(-103) nothing is left of a weight in float32.
        magnitude += torch.where(weight > 0, side, 0.0).nan_to_num(0.0, posinf=0.0) * 2.0**-120
    return rounding(expected, dtype) + magnitude * FLOAT32 + 2.0**-148


def _allowed_lse(expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
    """The greater sum, rounded once more, and the error of a logarithm of at most 2."""
    return expected.abs() * (2 * FLOAT32) + 4 * FLOAT32


def _moved_bytes(arguments: Arguments) -> int:
    outputs = arguments["prefix_output"].nbytes, arguments["prefix_lse"].nbytes
    return 3 * sum(outputs)


OPS = (
    Op(
        name="merge_attn_states",
        family="attention_states",
        reference=attention_states.merge_attn_states,
        cases=tuple(_cases()),
        batch={
            "prefix_output": 0,
            "prefix_lse": 1,
            "suffix_output": 0,
            "suffix_lse": 1,
            "result0": 0,
            "result1": 1,
        },
        views=("prefix_output", "prefix_lse", "suffix_output", "suffix_lse"),
        allowed={"result0": _allowed_output, "result1": _allowed_lse},
        moved_bytes=_moved_bytes,
        operations=lambda arguments: 3 * arguments["prefix_output"].numel(),
        benchmarks=(_case(torch.bfloat16, 1, 32, 128), _case(torch.bfloat16, 512, 32, 128)),
    ),
)
