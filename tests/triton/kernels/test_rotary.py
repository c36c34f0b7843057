# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding whose angles come from three positions, and with the norm before it fused."""

import pytest
import torch
from comparison import Rows, place
from torch import Tensor
from vllm.model_executor.layers.fused_qk_norm_rope import fused_qk_rmsnorm_rope_gate
from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

MROPE = "vllm.model_executor.layers.rotary_embedding.mrope:_triton_mrope_forward"


def chosen(table: Tensor, section: list[int], interleaved: bool) -> Tensor:
    """[tokens, pairs] of [3, tokens, pairs]: each pair's entry for the axis that it turns by."""
    pairs = table.shape[-1]
    if interleaved:
        axes = [
            axis if (axis := pair % 3) and pair < 3 * section[axis] else 0 for pair in range(pairs)
        ]
    else:
        axes = [axis for axis, count in enumerate(section) for _ in range(count)]
    return torch.stack([table[axis, :, pair] for pair, axis in enumerate(axes)], -1)


@pytest.mark.checks(MROPE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "rotary", "section", "interleaved"),
    [
        (3, 1, 32, 32, [4, 6, 6], False),
        (4, 2, 40, 24, [4, 4, 4], False),
        (5, 2, 48, 48, [10, 7, 7], True),
    ],
)
def test_mrope(
    device: torch.device,
    dtype: torch.dtype,
    neox: bool,
    heads: int,
    kv_heads: int,
    width: int,
    rotary: int,
    section: list[int],
    interleaved: bool,
) -> None:
    torch.manual_seed(1)
    tokens = 7
    inputs = [torch.randn(tokens, count * width).to(dtype) for count in (heads, kv_heads)]
    angles = torch.rand(3, tokens, rotary // 2) * 6.3
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    rows = [Rows(values, device) for values in inputs]

    triton_mrope(
        *(r.view for r in rows),
        cos.to(device),
        sin.to(device),
        section,
        width,
        rotary,
        interleaved,
        neox,
    )

    c, s = (chosen(table.double(), section, interleaved)[:, None] for table in (cos, sin))
    for result, values in zip(rows, inputs, strict=True):
        expected = values.double().view(tokens, -1, width).clone()
        first, second = slice(0, rotary // 2), slice(rotary // 2, rotary)
        if not neox:
            first, second = slice(0, rotary, 2), slice(1, rotary, 2)
        a, b = expected[..., first].clone(), expected[..., second].clone()
        expected[..., first], expected[..., second] = a * c - b * s, b * c + a * s
        found = result.cpu().view(tokens, -1, width)
        assert torch.equal(found[..., rotary:], values.view(tokens, -1, width)[..., rotary:])
        # Both products and their sum are rounded to the tables' dtype.
        size = (a.abs() * c.abs() + b.abs() * s.abs()).maximum(
            b.abs() * c.abs() + a.abs() * s.abs()
        )
        limit = torch.finfo(dtype).eps * size
        for part in (first, second):
            error = (found[..., part].double() - expected[..., part]).abs()
            assert (error <= limit).all(), float((error / limit).max())


@pytest.mark.checks(
    "vllm.model_executor.layers.fused_qk_norm_rope:_fused_qk_rmsnorm_rope_gate_kernel"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("width", "rotary", "section"), [(40, 24, None), (32, 32, None), (64, 48, [10, 7, 7])]
)
def test_norm_rope_gate(
    device: torch.device, dtype: torch.dtype, width: int, rotary: int, section: list[int] | None
) -> None:
    """Each query's head is followed by its gate, which is handed on as it is."""
    torch.manual_seed(2)
    tokens, heads, kv_heads, half = 6, 3, 2, rotary // 2
    query, gate = torch.randn(2, tokens, heads, width).to(dtype)
    key = torch.randn(tokens, kv_heads, width).to(dtype)
    weights = torch.randn(2, width).to(dtype)
    angles = torch.rand(50, half) * 6.3
    table = torch.cat([angles.cos(), angles.sin()], -1)
    positions = torch.randint(0, 50, (3, tokens) if section else (tokens,))

    results = fused_qk_rmsnorm_rope_gate(
        Rows(torch.cat([query, gate], -1).flatten(1), device).view,
        Rows(key.flatten(1), device).view,
        *place(device, *weights, table, positions),
        1e-6,
        heads,
        kv_heads,
        width,
        rotary,
        mrope_section=section,
        norm_beta=1.0,
    )

    rows = table.double()[positions.expand(3, tokens)]
    c, s = (
        chosen(part, section or [half, 0, 0], section is not None)[:, None]
        for part in rows.split(half, -1)
    )
    assert torch.equal(results[2].cpu(), gate.flatten(1))
    for result, values, weight in zip(results, (query, key), weights, strict=False):
        square = values.double().pow(2).mean(-1, keepdim=True)
        normed = values.double() / (square + 1e-6).sqrt() * (weight.double() + 1)
        a, b = normed[..., :half], normed[..., half:rotary]
        expected = torch.cat([a * c - b * s, b * c + a * s, normed[..., rotary:]], -1)
        # The norm's result is rounded to the dtype, and the turned one again.
        limit = torch.finfo(dtype).eps * (
            torch.cat([a.abs() + b.abs()] * 2 + [normed[..., rotary:].abs()], -1)
        )
        error = (result.cpu().double().view(expected.shape) - expected).abs()
        assert (error <= limit).all(), float((error / limit).max())
