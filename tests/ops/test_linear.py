# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import gemm
from vllm_anvil.references import gemm as reference


def check(result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Within float32's own rounding of the float64 result: each sum has `depth` terms."""
    x, weight, bias = x.double(), weight.double(), None if bias is None else bias.double()
    expected = reference.linear(x, weight, bias)
    magnitude = reference.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    allowed = magnitude * (weight.shape[1] + 2) * 2.0**-24 + 1e-30
    assert result.dtype == torch.float32 and result.shape == expected.shape
    assert bool(((result.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 7, 64, 67])
@pytest.mark.parametrize(
    ("columns", "depth"), [(1, 1), (3, 15), (9, 16), (33, 31), (40, 576), (0, 8)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_float64(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(rows * 1000 + columns + depth)
    x = torch.randn(rows, depth, generator=generator).to(device)
    weight = torch.randn(columns, depth, generator=generator).to(dtype).to(device)
    bias = torch.randn(columns, generator=generator).to(dtype).to(device)
    check(gemm.linear(x, weight), x, weight, None)
    check(gemm.linear(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_strided_offset_and_batched_inputs(dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (
        torch.randn(5, 6, 3, 40, generator=generator)
        .to(dtype)
        .to(device)[1:, :, 1, 3:36]
        .transpose(0, 1)
    )
    weight = torch.randn(30, 50, generator=generator).bfloat16().to(device)[2::2, 9:42]
    assert not x.is_contiguous() and not weight.is_contiguous()
    check(gemm.linear(x, weight), x, weight, None)
    one = x[0, 0]
    check(gemm.linear(one, weight), one, weight, None)


def test_a_row_does_not_depend_on_the_others(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(70, 576, generator=generator).to(device)
    weight = torch.randn(77, 576, generator=generator).bfloat16().to(device)
    together = gemm.linear(x, weight)
    order = torch.randperm(70, generator=generator).to(device)
    assert torch.equal(gemm.linear(x[order], weight), together[order])
    for row in range(0, 70, 9):
        assert torch.equal(gemm.linear(x[row : row + 1], weight)[0], together[row])


def test_infinities_and_nan_go_through(device: torch.device) -> None:
    x = torch.ones(3, 20)
    x[0, 3], x[1, 19] = float("inf"), float("nan")
    result = gemm.linear(x.to(device), torch.ones(5, 20, dtype=torch.bfloat16, device=device)).cpu()
    assert result[0].isinf().all() and result[1].isnan().all() and (result[2] == 20).all()


def test_refusals_name_the_argument(device: torch.device) -> None:
    x = torch.ones(2, 8, device=device)
    weight = torch.ones(4, 8, dtype=torch.bfloat16, device=device)
    with pytest.raises(TypeError, match="weight must be bfloat16 or float16"):
        gemm.linear(x, weight.float())
    with pytest.raises(TypeError, match="input must be float32"):
        gemm.linear(x.double(), weight)
    with pytest.raises(ValueError, match="last dimension of input is 7"):
        gemm.linear(x[:, :7], weight)
    with pytest.raises(ValueError, match="bias has 3 elements"):
        gemm.linear(x, weight, torch.ones(3, device=device))


def test_opcheck(device: torch.device) -> None:
    x = torch.randn(3, 8, device=device)
    weight = torch.randn(4, 8, device=device).bfloat16()
    torch.library.opcheck(torch.ops.anvil.linear, (x, weight, None))
    torch.library.opcheck(torch.ops.anvil.linear, (x, weight, torch.ones(4, device=device)))
