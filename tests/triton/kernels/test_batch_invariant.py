# SPDX-License-Identifier: Apache-2.0
"""Operations whose result for a row does not depend on the other rows."""

import pytest
import torch
from comparison import Rows, place
from torch import Tensor
from vllm.model_executor.determinism import batch_invariant

MODULE = "vllm.model_executor.determinism.batch_invariant"
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs for all tiles: the device's own number of units, asked of CUDA, is none."""
    monkeypatch.setattr(batch_invariant, "num_compute_units", lambda _: 2)
    monkeypatch.setattr(batch_invariant, "_BLOCK_SIZES_RESOLVED", True)


def assert_product(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Within rounding to the dtype and float32 errors of the sum; `size` sums magnitudes."""
    limit = torch.finfo(actual.dtype).eps * expected.abs() + 1e-6 * size
    error = (actual.cpu().double() - expected).abs()
    assert (error <= limit).all(), float((error / limit).max())


@pytest.mark.checks(f"{MODULE}:matmul_kernel_persistent")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 33, 5), (150, 100, 300)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_matmul(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    inner: int,
    columns: int,
    with_bias: bool,
) -> None:
    torch.manual_seed(1)
    left = torch.randn(rows, inner).to(dtype)
    right = torch.randn(columns, inner).to(dtype).T
    bias = torch.randn(columns).to(dtype)

    result = batch_invariant.matmul_persistent(
        Rows(left, device).view,
        right.to(device),
        bias.to(device) if with_bias else None,
    )

    extra = bias.double() if with_bias else torch.zeros(())
    expected = left.double() @ right.double() + extra
    assert_product(result, expected, left.double().abs() @ right.double().abs() + extra.abs())
    alone = batch_invariant.matmul_persistent(
        left[-1:].to(device), right.to(device), bias.to(device) if with_bias else None
    )
    assert torch.equal(alone.cpu(), result[-1:].cpu())


@pytest.mark.checks(f"{MODULE}:bmm_kernel")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 70, 17), (130, 33, 129)])
def test_batched_matmul(
    device: torch.device, dtype: torch.dtype, rows: int, inner: int, columns: int
) -> None:
    torch.manual_seed(2)
    left = torch.randn(3, rows, inner).to(dtype)
    right = torch.randn(3, columns, inner).to(dtype).mT

    result = batch_invariant.bmm_batch_invariant(*place(device, left, right))

    expected = left.double() @ right.double()
    assert_product(result, expected, left.double().abs() @ right.double().abs())


@pytest.mark.checks(f"{MODULE}:_softmax_kernel")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 1024, 2501])
def test_softmax(device: torch.device, dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(3)
    values = (torch.randn(2, 3, width) * 4).to(dtype)
    values[0, 0, width // 2 + 1 :] = -torch.inf
    expected = values.double()

    # Differences to the maximum are of the dtype, and so are exponentials of bfloat16.
    rounding = torch.finfo(dtype).eps
    result = batch_invariant.log_softmax(values.to(device)).cpu().double()
    wanted = expected.log_softmax(-1)
    torch.testing.assert_close(result, wanted, rtol=2 * rounding, atol=8 * rounding)
    result = batch_invariant.softmax(values.to(device)).cpu().double()
    wanted = expected.softmax(-1)
    torch.testing.assert_close(result, wanted, rtol=12 * rounding, atol=rounding * 1e-3)


@pytest.mark.checks(f"{MODULE}:mean_kernel")
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_mean(device: torch.device, dim: int, keepdim: bool) -> None:
    torch.manual_seed(4)
    values = torch.randn(3, 1100, 7) + 1

    result = batch_invariant.mean_dim(values.to(device), dim, keepdim)

    expected = values.double().mean(dim, keepdim)
    assert result.shape == expected.shape
    torch.testing.assert_close(result.cpu().double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.checks(f"{MODULE}:mean_kernel")
def test_mean_of_several(device: torch.device) -> None:
    torch.manual_seed(5)
    values = torch.randn(5, 6, 70).bfloat16()

    result = batch_invariant.mean_batch_invariant(values.to(device), [0, -1])

    expected = values.double().mean((0, 2))
    torch.testing.assert_close(result.cpu().double(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.checks(f"{MODULE}:_rms_norm_kernel")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 1024, 1501])
@pytest.mark.parametrize("with_weight", [False, True])
def test_rms_norm(device: torch.device, dtype: torch.dtype, width: int, with_weight: bool) -> None:
    torch.manual_seed(6)
    values = torch.randn(2, 3, width).to(dtype) * 3
    values[0, 0] = 0
    weight = torch.randn(width).to(dtype) if with_weight else None

    result = batch_invariant.rms_norm_batch_invariant(
        values.to(device), weight.to(device) if weight is not None else None, eps=1e-5
    )

    square = values.double().pow(2).mean(-1, keepdim=True)
    expected = values.double() / (square + 1e-5).sqrt()
    if weight is not None:
        expected = expected * weight.double()
    rounding = max(torch.finfo(dtype).eps / 2 * 1.001, 1e-6)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=rounding, atol=0)


@pytest.mark.checks(f"{MODULE}:_fixed_order_sum_kernel")
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_of_ranks(device: torch.device, dtype: torch.dtype) -> None:
    """What the reduction over ranks launches, bit for bit: in the ranks' order, rounded once."""
    torch.manual_seed(7)
    parts = (torch.randn(5, 1500) * torch.tensor([1, 1e3, 1, 1e-3, 1e2])[:, None]).to(dtype)
    output = torch.empty(1500, dtype=dtype, device=device)

    batch_invariant._fixed_order_sum_kernel[(2,)](
        parts.to(device), output, 1500, 1500, WORLD_SIZE=5, BLOCK_SIZE=1024, LARGE=False
    )

    expected = torch.zeros(1500)
    for part in parts:
        expected = expected + part.float()
    assert torch.equal(output.cpu(), expected.to(dtype))
