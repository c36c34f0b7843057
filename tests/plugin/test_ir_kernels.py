# SPDX-License-Identifier: Apache-2.0
"""The provider "anvil" of the engine's IR ops: when it is asked, and what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vllm import ir
from vllm.config import KernelConfig, VllmConfig
from vllm.config.kernel import IrOpPriorityConfig

import vllm_anvil.device  # noqa: F401  registers the device

pytestmark = pytest.mark.usefixtures("platform", "anvil_layers")

UNIT = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def normal(*shape: int, dtype: torch.dtype = torch.float32, device: str = "anvil") -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def provider(op: Any, *arguments: Any) -> str:
    return op.dispatch(*arguments).provider


def test_the_platform_puts_anvil_first() -> None:
    priority = VllmConfig().kernel_config.ir_op_priority
    assert priority.rms_norm == ["anvil", "native"]
    assert priority.fused_add_rms_norm == ["anvil", "native"]
    assert priority.gelu_and_mul_sparse == ["native"]
    assert priority.compute_hash()


def test_what_the_user_prefers_wins() -> None:
    wanted = IrOpPriorityConfig(rms_norm=["native"])
    priority = VllmConfig(kernel_config=KernelConfig(ir_op_priority=wanted)).kernel_config
    assert priority.ir_op_priority.rms_norm == ["native", "anvil"]
    x, weight = normal(3, 8), normal(8)
    with priority.ir_op_priority.set_priority():
        assert provider(ir.ops.rms_norm, x, weight, 1e-6) == "native"
        assert provider(ir.ops.fused_add_rms_norm, x, x.clone(), weight, 1e-6) == "anvil"
    assert provider(ir.ops.rms_norm, x, weight, 1e-6) == "anvil"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_anvil_takes(dtype: torch.dtype) -> None:
    x, weight = normal(3, 2, 8, dtype=dtype), normal(8)
    assert provider(ir.ops.rms_norm, x, weight, 1e-6) == "anvil"
    assert provider(ir.ops.rms_norm, x, weight.to(dtype), 1e-6, 4) == "anvil"
    assert provider(ir.ops.rms_norm, x, None, 1e-6) == "anvil"
    assert provider(ir.ops.rms_norm, normal(3, 16, dtype=dtype)[:, 4:12], weight, 1e-6) == "anvil"
    assert provider(ir.ops.fused_add_rms_norm, x, x.clone(), weight, 1e-6) == "anvil"


def test_native_takes_the_rest() -> None:
    x, weight = normal(3, 8), normal(8)
    host = normal(3, 8, device="cpu")
    for arguments in (
        (host, normal(8, device="cpu"), 1e-6),
        (x.double(), weight.double(), 1e-6),
        (x.double(), None, 1e-6),
        (normal(8, 3).T, weight, 1e-6),
        (normal(3, 16)[:, ::2], weight, 1e-6),
        (x, normal(16)[::2], 1e-6),
    ):
        assert provider(ir.ops.rms_norm, *arguments) == "native"
        normed = ir.ops.rms_norm(*arguments)
        expected = ir.ops.rms_norm.impls["native"].impl_fn(*arguments)
        assert torch.equal(normed.cpu(), expected.cpu())


def test_native_takes_what_in_place_would_spoil() -> None:
    weight = normal(8)
    for x, residual in (
        (normal(3, 8), normal(3, 8).bfloat16()),  # the result's residual has the dtype of x
        (normal(1, 8).expand(3, 8), normal(3, 8)),
        (normal(3, 8), normal(1, 8).expand(3, 8)),
        (normal(3, 8), normal(1, 8)),
    ):
        assert provider(ir.ops.fused_add_rms_norm, x, residual, weight, 1e-6) == "native"
    x = normal(3, 8)
    assert provider(ir.ops.fused_add_rms_norm, x, x, weight, 1e-6) == "native"
    assert provider(ir.ops.fused_add_rms_norm, normal(0, 8), normal(0, 8), weight, 1e-6) == "anvil"


def test_what_goes_to_native_on_the_device_is_counted() -> None:
    from vllm_anvil.plugin.op_arguments import fallbacks

    before = fallbacks.copy()
    ir.ops.rms_norm(normal(3, 8, device="cpu"), None, 1e-6)
    assert fallbacks == before
    ir.ops.rms_norm(normal(3, 8).double(), None, 1e-6)
    ir.ops.rms_norm(normal(5, 8).double(), None, 1e-6)
    counted = fallbacks - before
    assert counted == {("rms_norm", "x is float64 on anvil with 2 dimensions"): 2}


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=2),
    hidden=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    weighted=st.booleans(),
    variance_size=st.integers(1, 70) | st.none(),
    residual=st.booleans(),
)
def test_results_are_those_of_float64(
    rows: list[int],
    hidden: int,
    dtype: torch.dtype,
    weighted: bool,
    variance_size: int | None,
    residual: bool,
) -> None:
    if variance_size is not None:
        variance_size = min(variance_size, hidden)
    x = normal(*rows, hidden, dtype=dtype)
    weight = normal(hidden) if weighted else None
    operands = [x, normal(1, *rows, hidden, dtype=dtype)[0]] if residual else [x]
    exact = [t.cpu().double() for t in operands]
    total = sum(exact)
    # The engine's native implementation casts to float32, so the expectation is written out.
    mean = total[..., :variance_size].square().mean(-1, keepdim=True)
    expected = total * torch.rsqrt(mean + 1e-6)
    if weight is not None:
        expected = expected * weight.cpu().double()
    if not residual:
        results, wanted = [ir.ops.rms_norm(x, weight, 1e-6, variance_size)], [expected]
    else:
        kept = [t.clone() for t in operands]
        results = ir.ops.fused_add_rms_norm(*operands, weight, 1e-6, variance_size)
        assert all(torch.equal(a, b) for a, b in zip(operands, kept, strict=True))
        in_place = ir.ops.fused_add_rms_norm.maybe_inplace(*operands, weight, 1e-6, variance_size)
        assert all(a is b for a, b in zip(in_place, operands, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(in_place, results, strict=True))
        wanted = [expected, total]
    for result, right in zip(results, wanted, strict=True):
        assert result.dtype == dtype
        error = (result.cpu().double() - right).abs()
        assert (error <= right.abs() * UNIT[dtype] + 2e-6).all()
