# SPDX-License-Identifier: Apache-2.0
"""Quantisation of activations, and products of quantised matrices."""

import pytest
import torch
from comparison import place
from torch import Tensor
from vllm.kernels.triton.qkv_padded_fp8_quant import quantize_fp8_pad_head_dim_triton
from vllm.model_executor.layers.quantization import awq_triton
from vllm.model_executor.layers.quantization.compressed_tensors import triton_scaled_mm
from vllm.model_executor.layers.quantization.utils import fp8_utils, int8_utils

PACKAGE = "vllm.model_executor.layers.quantization"
FP8 = torch.float8_e4m3fn
LARGEST = 448.0


def assert_product(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Within rounding to the dtype and float32 errors of the sum; `size` sums magnitudes."""
    limit = torch.finfo(actual.dtype).eps * expected.abs() + 2e-6 * size
    error = (actual.cpu().double() - expected).abs()
    assert (error <= limit).all(), float((error / limit.clamp(min=1e-30)).max())


def fp8_values(scale: float, *shape: int) -> Tensor:
    return (torch.randn(shape) * scale).to(FP8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("group", [32, 48])
@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize(
    "columns_first",
    [
        pytest.param(
            False, marks=pytest.mark.checks(f"{PACKAGE}.utils.fp8_utils:_per_token_group_quant_fp8")
        ),
        pytest.param(
            True,
            marks=pytest.mark.checks(
                f"{PACKAGE}.utils.fp8_utils:_per_token_group_quant_fp8_colmajor"
            ),
        ),
    ],
)
def test_groups_fp8(
    device: torch.device, dtype: torch.dtype, group: int, powers: bool, columns_first: bool
) -> None:
    torch.manual_seed(1)
    values = (torch.randn(7, 3 * group) * torch.logspace(-3, 3, 7)[:, None]).to(dtype)
    values[3, :group] = 0

    quantised, scales = fp8_utils.per_token_group_quant_fp8(
        values.to(device),
        group,
        dtype=FP8,
        column_major_scales=columns_first,
        use_ue8m0=powers,
    )

    groups = values.float().unflatten(-1, (3, group))
    wanted = groups.abs().amax(-1).clamp(min=1e-10) / LARGEST
    if powers:
        wanted = torch.exp2(wanted.double().log2().ceil()).float()
    assert scales.stride() == ((1, 7) if columns_first else (3, 1))
    torch.testing.assert_close(scales.cpu(), wanted, rtol=0 if powers else 3e-7, atol=0)
    exact = (groups / scales.cpu()[..., None]).clamp(-LARGEST, LARGEST)
    assert torch.equal(quantised.cpu().float(), exact.to(FP8).float().flatten(-2))


@pytest.mark.checks(f"{PACKAGE}.utils.fp8_utils:_silu_mul_per_token_group_quant_fp8_colmajor")
@pytest.mark.parametrize("limit", [None, 2.0])
def test_silu_groups_fp8(device: torch.device, limit: float | None) -> None:
    torch.manual_seed(2)
    group, rows = 32, 64
    values = (torch.randn(rows, 4 * group) * 2).bfloat16()

    quantised, scales = fp8_utils.silu_mul_per_token_group_quant_fp8_colmajor(
        values.to(device), use_ue8m0=False, group_size=group, clamp_limit=limit
    )

    gate, up = values.double().split(2 * group, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    wanted = gate * torch.sigmoid(gate) * up
    found = quantised.cpu().double().unflatten(-1, (2, group)) * scales.cpu().double()[..., None]
    largest = wanted.unflatten(-1, (2, group)).abs().amax(-1)
    torch.testing.assert_close(scales.cpu().double(), largest / LARGEST, rtol=2**-7, atol=0)
    # The product is rounded to bfloat16 and then to three bits, or to the smallest step.
    limit_of_error = wanted.abs() * (2**-4 + 2**-6) + (
        2**-9 * scales.cpu().double()
    ).repeat_interleave(group, -1)
    assert ((found.flatten(-2) - wanted).abs() <= limit_of_error).all()


@pytest.mark.checks("vllm.kernels.triton.qkv_padded_fp8_quant:_quantize_pad_fp8_kernel")
@pytest.mark.parametrize("width", [72, 150])
def test_padded_heads_fp8(device: torch.device, width: int) -> None:
    """A part of something interleaved, filled up with zeros to a multiple of 16."""
    torch.manual_seed(9)
    values = (torch.randn(5, 3, 2, width) * 300).bfloat16()
    scale = torch.tensor([0.75])

    result = quantize_fp8_pad_head_dim_triton(values.to(device)[:, :, 1], scale.to(device))

    padded = -(-width // 16) * 16
    exact = (values[:, :, 1].float() / scale).clamp(-LARGEST, LARGEST).to(FP8).float()
    assert result.shape == (5, 3, padded) and (exact.abs() == LARGEST).any()
    assert torch.equal(result.cpu().float(), torch.nn.functional.pad(exact, (0, padded - width)))


@pytest.mark.checks(f"{PACKAGE}.utils.int8_utils:_per_token_quant_int8")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [1, 77, 512])
def test_tokens_int8(device: torch.device, dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(3)
    values = torch.randn(2, 5, width).to(dtype) * 9

    quantised, scales = int8_utils.per_token_quant_int8(values.to(device))

    largest = values.float().abs().amax(-1, keepdim=True).clamp(min=1e-10)
    torch.testing.assert_close(scales.cpu(), largest / 127, rtol=2e-7, atol=0)
    exact = values.double() * 127 / largest.double()
    error = (quantised.cpu().double() - exact).abs()
    assert (error <= 0.5 + 2e-5).all() and quantised.cpu().abs().amax() == 127


@pytest.mark.checks(f"{PACKAGE}.utils.int8_utils:_per_token_group_quant_int8")
@pytest.mark.parametrize("group", [16, 20])
def test_groups_int8(device: torch.device, group: int) -> None:
    """Unlike the tokens' quantisation this one rounds towards zero."""
    torch.manual_seed(4)
    values = torch.randn(6, 4 * group)

    quantised, scales = int8_utils.per_token_group_quant_int8(values.to(device), group)

    groups = values.unflatten(-1, (4, group))
    torch.testing.assert_close(scales.cpu(), groups.abs().amax(-1) / 127, rtol=2e-7, atol=0)
    exact = (groups / scales.cpu()[..., None]).clamp(-128, 127)
    assert torch.equal(quantised.cpu(), exact.trunc().to(torch.int8).flatten(-2))


@pytest.mark.checks(f"{PACKAGE}.utils.fp8_utils:_w8a8_triton_block_scaled_mm")
@pytest.mark.parametrize("output", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 64, 32), (70, 100, 75)])
def test_block_scaled_product(
    device: torch.device, output: torch.dtype, rows: int, inner: int, columns: int
) -> None:
    torch.manual_seed(5)
    block = 32
    left, right = fp8_values(1, rows, inner), fp8_values(1, columns, inner)
    left_scale = torch.rand(rows, -(-inner // block)) + 0.1
    right_scale = torch.rand(-(-columns // block), -(-inner // block)) + 0.1

    result = fp8_utils.w8a8_triton_block_scaled_mm(
        *place(device, left, right, left_scale, right_scale), [block, block], output
    )

    a = left.double() * left_scale.repeat_interleave(block, -1)[:, :inner]
    wide = right_scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
    b = (right.double() * wide[:columns, :inner]).T
    assert_product(result, a @ b, a.abs() @ b.abs())


@pytest.mark.checks(f"{PACKAGE}.compressed_tensors.triton_scaled_mm:scaled_mm_kernel")
@pytest.mark.parametrize("dtype", [torch.int8, FP8])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_scaled_product(
    device: torch.device, dtype: torch.dtype, by_row: bool, transposed: bool
) -> None:
    torch.manual_seed(6)
    rows, inner, columns = 37, 100, 45
    left, right = (torch.randn(shape) * 40 for shape in ((rows, inner), (inner, columns)))
    left, right = left.clamp(-127, 127).to(dtype), right.clamp(-127, 127).to(dtype)
    if transposed:
        right = right.T.contiguous().T
    left_scale = torch.rand(rows if by_row else 1, 1)
    right_scale = torch.rand(columns if by_row else 1, 1)
    bias = torch.randn(columns).bfloat16()

    result = triton_scaled_mm.triton_scaled_mm(
        *place(device, left, right, left_scale, right_scale), torch.bfloat16, bias.to(device)
    )

    a, b = left.double() * left_scale, right.double() * right_scale.T
    expected = a @ b + bias.double()
    # The product is rounded to bfloat16 before the bias is added.
    assert_product(result, expected, (a.abs() @ b.abs() + bias.double().abs()))


def packed_fours(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Numbers 0..15 [rows, columns] and the int32 [rows, columns / 8] that hold them.

    A word's four-bit pieces, lowest first, are the columns 0, 2, 4, 6, 1, 3, 5, 7.
    """
    values = torch.randint(0, 16, (rows, columns))
    words = torch.zeros(rows, columns // 8, dtype=torch.int64)
    for piece, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        words |= values[:, column::8] << (4 * piece)
    return values, words.to(torch.uint32).view(torch.int32)


@pytest.mark.checks(f"{PACKAGE}.awq_triton:awq_dequantize_kernel")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_awq_weights(device: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    rows, columns, group = 96, 72, 32
    values, packed = packed_fours(rows, columns)
    zeros, packed_zeros = packed_fours(rows // group, columns)
    scales = torch.rand(rows // group, columns).to(dtype)

    result = awq_triton.awq_dequantize_triton(*place(device, packed, scales, packed_zeros))

    wide = [part.repeat_interleave(group, 0) for part in (zeros, scales)]
    expected = ((values - wide[0]).double() * wide[1].double()).to(dtype)
    assert torch.equal(result.cpu(), expected)


@pytest.mark.checks(f"{PACKAGE}.awq_triton:awq_gemm_kernel")
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("tokens", [1, 40])
def test_awq_product(device: torch.device, splits: int, tokens: int) -> None:
    torch.manual_seed(8)
    inner, columns, group = 128, 72, 32
    values, packed = packed_fours(inner, columns)
    zeros, packed_zeros = packed_fours(inner // group, columns)
    scales = (torch.rand(inner // group, columns) / 8).half()
    inputs = torch.randn(tokens, inner).half()

    result = awq_triton.awq_gemm_triton(
        *place(device, inputs, packed, scales, packed_zeros), split_k_iters=splits
    )

    wide = [part.repeat_interleave(group, 0) for part in (zeros, scales)]
    weights = ((values - wide[0]).double() * wide[1].double()).half().double()
    size = inputs.double().abs() @ weights.abs()
    error = (result.cpu().double() - inputs.double() @ weights).abs()
    # The sums themselves are of float16.
    assert (error <= 2**-9 * size).all(), float((error / size).max())
