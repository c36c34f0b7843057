# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of experts, for few tokens: both products of an assignment in one kernel."""

import pytest
import torch
from comparison import int32, place
from vllm.lora.ops.triton_ops import fused_moe_lora_op
from vllm.platforms import current_platform

MODULE = "vllm.lora.ops.triton_ops.fused_moe_lora_op"
LORAS, EXPERTS, TOP_K, INNER, COLUMNS = 3, 4, 2, 150, 140


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(
            True, marks=pytest.mark.checks(f"{MODULE}:_fused_moe_lora_small_batch_kernel")
        ),
        pytest.param(False, marks=pytest.mark.checks(f"{MODULE}:_fused_moe_lora_one_shot_kernel")),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("add_inputs", [False, True])
@pytest.mark.parametrize(("slices", "rank"), [(1, 8), (2, 20)])
def test_assignments(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    small: bool,
    weighted: bool,
    add_inputs: bool,
    slices: int,
    rank: int,
) -> None:
    """`weighted`: the tokens are an earlier product's, one for each assignment."""
    monkeypatch.setattr(type(current_platform), "num_compute_units", lambda *_: 2)
    torch.manual_seed(1)
    adapters = [0, -1, 2, 1, 2]
    enabled = int32([1, 0, 1, 0])  # adapter 1 is not loaded
    tokens = len(adapters)
    inputs = torch.randn(tokens * (TOP_K if weighted else 1), INNER).bfloat16()
    down = [torch.randn(LORAS, EXPERTS, rank, INNER).bfloat16() for _ in range(slices)]
    up = [torch.randn(LORAS, EXPERTS, COLUMNS, rank).bfloat16() for _ in range(slices)]
    experts = torch.rand(tokens, EXPERTS).argsort(-1)[:, :TOP_K].int()
    routed = torch.rand(tokens, TOP_K)
    before = torch.randn(tokens, TOP_K, slices * COLUMNS).bfloat16()
    output = before.clone().to(device)
    first = (output, inputs.to(device), place(device, *down), place(device, *up), routed.to(device))

    if small:
        fused_moe_lora_op._run_fused_moe_lora_small_batch(
            *first,
            experts.flatten().to(device),
            int32(adapters, device),
            TOP_K,
            enabled.to(device),
            weighted,
            add_inputs,
        )
    else:
        fused_moe_lora_op._run_fused_moe_lora_one_shot(
            *first,
            None,
            experts.flatten().to(device),
            None,
            int32(adapters, device),
            rank,
            TOP_K,
            int32([-1, 0, 1, 2], device),
            int32([LORAS + 1]),
            enabled.to(device),
            weighted,
            16,
            add_inputs,
        )

    found = output.cpu()
    for token, adapter in enumerate(adapters):
        for choice, expert in enumerate(experts[token].tolist()):
            if adapter < 0 or not enabled[adapter]:
                assert torch.equal(found[token, choice], before[token, choice])
                continue
            row = inputs[token * TOP_K + choice if weighted else token].double()
            factor = float(routed[token, choice]) if weighted else 1.0
            for index in range(slices):
                part = slice(index * COLUMNS, (index + 1) * COLUMNS)
                a, b = (matrix[index][adapter, expert].double() for matrix in (down, up))
                base = before[token, choice, part].double() * add_inputs
                expected = base + factor * (b @ (a @ row))
                size = base.abs() + factor * (b.abs() @ (a @ row).abs()) + expected.abs()
                error = (found[token, choice, part].double() - expected).abs()
                assert (error <= torch.finfo(torch.bfloat16).eps * size + 1e-4).all()
