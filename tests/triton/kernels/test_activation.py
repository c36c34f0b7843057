# SPDX-License-Identifier: Apache-2.0
"""Activations of gated layers: the first half of a row gates the second."""

import math

import pytest
import torch
from comparison import Rows, assert_close_rounded, assert_close_ulp
from torch import Tensor
from vllm.kernels.triton.activation import _gelu_and_mul_sparse_kernel
from vllm.model_executor.layers.activation import swiglustep_and_mul_triton

CLAMPED = "vllm.model_executor.layers.activation:_swiglustep_and_mul_kernel"
SPARSE = "vllm.kernels.triton.activation:_gelu_and_mul_sparse_kernel"


def assert_near(actual: Tensor, expected: Tensor, ulps: float, magnitude: float = 0.0) -> None:
    compare = assert_close_ulp if actual.dtype == torch.float32 else assert_close_rounded
    compare(actual, expected, ulps, magnitude)


@pytest.mark.checks(CLAMPED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [37, 1024, 1501])
def test_clamped_swiglu(device: torch.device, dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(1)
    values = (torch.randn(5, 2 * width) * 6).to(dtype)
    output = Rows(torch.zeros(5, width, dtype=dtype), device)

    swiglustep_and_mul_triton(output.view, Rows(values, device).view, limit=7.0)

    gate, up = values.double().split(width, -1)
    expected = (gate * torch.sigmoid(gate)).clamp(max=7) * up.clamp(-7, 7)
    assert (gate * torch.sigmoid(gate) > 7).any() and (up < -7).any()
    assert_near(output.cpu(), expected, 8, 1e-30)


@pytest.mark.checks(SPARSE)
@pytest.mark.parametrize("width", [48, 1000])
def test_sparse_gelu(device: torch.device, width: int) -> None:
    """Only what is far above the row's mean passes; the wrapper wants CUDA's tensors."""
    torch.manual_seed(2)
    values = torch.randn(6, 2 * width) * 2 + 0.5
    output = torch.empty(6, width, device=device)

    _gelu_and_mul_sparse_kernel[(6,)](
        values.to(device),
        output,
        d=width,
        std_multiplier=0.7,
        BLOCK_SIZE=1 << (width - 1).bit_length(),
    )

    gate, up = values.double().split(width, -1)
    cutoff = gate.mean(-1, keepdim=True) + 0.7 * gate.std(-1, correction=0, keepdim=True)
    kept = (gate - cutoff).clamp(min=0)
    inner = math.sqrt(2 / math.pi) * (kept + 0.044715 * kept**3)
    expected = 0.5 * kept * (1 + torch.tanh(inner)) * up
    assert 0 < (kept > 0).double().mean() < 0.5
    torch.testing.assert_close(output.cpu().double(), expected, rtol=2e-6, atol=1e-5)
