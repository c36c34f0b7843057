# SPDX-License-Identifier: Apache-2.0
"""Short causal convolutions: over whole prompts, and a step at a time with the state they keep."""

import pytest
import torch
from comparison import int32, offsets, place
from torch import Tensor
from triton_wrappers import wrappers

MODULE = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
conv = wrappers(MODULE)

LINES = 9


def convolved(history: Tensor, new: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Values [dim, n] of `new` [dim, n] after `history` [dim, width - 1], and their scale."""
    width = weight.shape[1]
    whole = torch.cat([history, new], -1).double()
    terms = whole.unfold(-1, width, 1) * weight.double()[:, None]
    result = terms.sum(-1) + bias.double()[:, None]
    return result * torch.sigmoid(result), terms.abs().sum(-1) + bias.double().abs()[:, None]


def assert_near(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Products of 16 bits are rounded, and SiLU's slope is at most 1.1; float32 has its errors."""
    steps = 4 if actual.dtype == torch.float32 else 1.2
    limit = steps * torch.finfo(actual.dtype).eps * size
    error = (actual.cpu().double() - expected).abs()
    assert (error <= limit).all(), float((error / limit).max())


def setting(dim: int, width: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random weight [dim, width], bias [dim] and states [lines, dim, length]."""
    weight, bias = torch.randn(dim, width).to(dtype), torch.randn(dim).to(dtype)
    return weight, bias, torch.randn(LINES, dim, length).to(dtype)


@pytest.mark.checks(f"{MODULE}:_causal_conv1d_fwd_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("dim", "width"), [(40, 4), (300, 2), (72, 3)])
def test_prompts(device: torch.device, dtype: torch.dtype, dim: int, width: int) -> None:
    torch.manual_seed(1)
    lengths, lines = [1, 21, 2, 8, 5], [3, 1, 7, 5, 0]
    had = [True, True, False, False, True]
    weight, bias, states = setting(dim, width, width - 1, dtype)
    inputs = torch.randn(sum(lengths), dim).to(dtype)
    placed = states.mT.contiguous().to(device).mT

    output = conv.causal_conv1d_fn(
        inputs.to(device).T,
        *place(device, weight, bias),
        placed,
        offsets(lengths).to(device),
        int32(lines, device),
        torch.tensor(had, device=device),
    )

    expected = states.clone()
    start = 0
    for length, line, initial in zip(lengths, lines, had, strict=True):
        new = inputs[start : start + length].T
        history = states[line] if initial else torch.zeros_like(states[line])
        # Line 0 is nobody's.
        if line:
            values, size = convolved(history, new, weight, bias)
            assert_near(output[:, start : start + length], values, size)
            expected[line] = torch.cat([history, new], -1)[:, -(width - 1) :]
        start += length
    assert torch.equal(placed.cpu(), expected)


@pytest.mark.checks(f"{MODULE}:_causal_conv1d_update_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("dim", "width"), [(40, 4), (300, 2), (72, 3)])
def test_step(device: torch.device, dtype: torch.dtype, dim: int, width: int) -> None:
    torch.manual_seed(2)
    lines = [4, 0, 1, 8]
    weight, bias, states = setting(dim, width, width - 1, dtype)
    inputs = torch.randn(len(lines), dim).to(dtype)
    placed = states.to(device)

    output = conv.causal_conv1d_update(
        inputs.to(device),
        placed,
        *place(device, weight, bias),
        "silu",
        conv_state_indices=int32(lines, device),
    )

    expected = states.clone()
    for row, line in enumerate(lines):
        if line:
            new = inputs[row][:, None]
            values, size = convolved(states[line], new, weight, bias)
            assert_near(output[row][:, None], values, size)
            expected[line] = torch.cat([states[line], new], -1)[:, 1:]
    assert torch.equal(placed.cpu(), expected)


@pytest.mark.checks(f"{MODULE}:_causal_conv1d_update_kernel")
@pytest.mark.parametrize("width", [2, 4])
def test_step_of_drafts(device: torch.device, width: int) -> None:
    """Several tokens, after a step of which only the first few were accepted."""
    torch.manual_seed(3)
    dim, drafted, lines, accepted = 40, 3, [4, 0, 1, 8], [1, 1, 3, 2]
    weight, bias, states = setting(dim, width, width - 1 + drafted - 1, torch.float32)
    inputs = torch.randn(len(lines), dim, drafted)
    placed = states.to(device)

    output = conv.causal_conv1d_update(
        inputs.to(device),
        placed,
        *place(device, weight, bias),
        "silu",
        conv_state_indices=int32(lines, device),
        num_accepted_tokens=int32(accepted, device),
    )

    expected = states.clone()
    for row, line in enumerate(lines):
        if line:
            first = accepted[row] - 1
            history = states[line][:, first : first + width - 1]
            values, size = convolved(history, inputs[row], weight, bias)
            assert_near(output[row], values, size)
            expected[line] = torch.cat([history, inputs[row]], -1)[:, 1:]
    assert torch.equal(placed.cpu(), expected)
