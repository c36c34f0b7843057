# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import embedding, gemm
from vllm_anvil.references.gemm import rounded

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Within float32's own rounding of the float64 result, and rounded once."""
    assert result.dtype in DTYPES
    x, weight = x.double(), weight.double()
    offsets = 0.0 if bias is None else bias.double()
    expected = x @ weight.T + offsets
    magnitude = x.abs() @ weight.abs().T + (0.0 if bias is None else bias.double().abs())
    allowed = magnitude * (weight.shape[1] + 2) * 2.0**-24
    if result.dtype != torch.float32:
        allowed = allowed + expected.abs() * torch.finfo(result.dtype).eps / 2
    assert result.shape == expected.shape and result.is_contiguous()
    assert bool(((result.double() - expected).abs() <= allowed + 1e-30).all())


@pytest.mark.parametrize(("input", "weight"), list(itertools.product(DTYPES, DTYPES)))
def test_every_number_of_rows(
    input: torch.dtype, weight: torch.dtype, device: torch.device
) -> None:
    """From 0 to 70: all tiles that there are, of the columns and the depth too."""
    x = normal(70, 77, seed=1).to(input).to(device)
    w = normal(151, 77, seed=2).to(weight).to(device)
    bias = normal(151, seed=3).to(weight).to(device)
    packed = gemm.pack_linear(w)
    together = gemm.packed_linear(x, packed, 151, bias, torch.float32)
    check(together, x, w, bias)
    for rows in range(71):
        result = gemm.packed_linear(x[:rows], packed, 151, bias, torch.float32)
        assert torch.equal(result, together[:rows]), rows
    own = gemm.packed_linear(x, packed, 151, bias)
    assert own.dtype == input and torch.equal(own, together.to(input))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 8, 33, 500])
def test_a_row_does_not_depend_on_the_others(
    rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = normal(2000, 1100, seed=4).to(dtype).to(device)
    packed = gemm.pack_linear(normal(130, 1100, seed=5).to(dtype).to(device))
    together = gemm.packed_linear(x, packed, 130, dtype=torch.float32)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(6))[:rows].to(device)
    assert torch.equal(
        gemm.packed_linear(x[order], packed, 130, dtype=torch.float32), together[order]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_large_input_does_not_hide_the_others(
    rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    """A product of 2**24, beside which a float32 sum has no place for ones."""
    x, weight = torch.ones(rows, 1024), torch.ones(20, 1024)
    x[:, 0] = weight[:, 0] = 2.0**12
    packed = gemm.pack_linear(weight.to(dtype).to(device))
    result = gemm.packed_linear(x.to(dtype).to(device), packed, 20, dtype=torch.float32)
    # Lost is at most what is summed together with it.
    assert bool((result >= 2.0**24 + 1024 - 128).all()) and bool((result <= 2.0**24 + 1024).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_offset_and_batched_inputs(dtype: torch.dtype, device: torch.device) -> None:
    x = normal(5, 6, 3, 40, seed=7).to(dtype).to(device)[1:, :, 1, 3:36].transpose(0, 1)
    whole = normal(30, 50, seed=8).to(dtype).to(device)
    weight = whole[2::2, 9:42]
    assert not x.is_contiguous() and not weight.is_contiguous()
    packed = gemm.pack_linear(weight)
    assert torch.equal(gemm.unpack_linear(packed, 14, 33), weight)
    check(gemm.packed_linear(x, packed, 14, dtype=torch.float32), x, weight, None)
    for rows in (x[0, 0], x[:, 0], x[:, 2].flip(-1), x[0].T.contiguous().T):
        result = gemm.packed_linear(rows, packed, 14, dtype=torch.float32)
        check(result, rows, weight, None)


@pytest.mark.parametrize("weight", DTYPES)
def test_a_rounded_input_is_the_rounded_tensor(weight: torch.dtype, device: torch.device) -> None:
    """The same bits as with the input rounded before, for every number of rows."""
    x = normal(20, 77, seed=12).to(device)
    packed = gemm.pack_linear(normal(50, 77, seed=13).to(weight).to(device))
    for rows in range(21):
        result = gemm.packed_linear(x[:rows], packed, 50, input_dtype=weight)
        expected = gemm.packed_linear(x[:rows].to(weight), packed, 50, dtype=torch.float32)
        assert result.dtype == torch.float32 and torch.equal(result, expected)


MOSTLY = {"input_dtype": torch.bfloat16, "keep_remainders": True}


def test_an_input_that_is_mostly_rounded(device: torch.device) -> None:
    """For every number of rows the same bits, within float32's rounding of the reference."""
    for depth in (77, 80):
        x = normal(30, depth, seed=14)
        weight = normal(50, depth, seed=15).bfloat16().to(device)
        packed = gemm.pack_linear(weight)
        together = gemm.packed_linear(x.to(device), packed, 50, **MOSTLY)
        kept = rounded(x.double(), torch.bfloat16, keep_remainders=True)
        check(together, kept.to(device), weight, None)
        for rows in range(31):
            result = gemm.packed_linear(x[:rows].to(device), packed, 50, **MOSTLY)
            assert torch.equal(result, together[:rows]), rows


def test_what_keeping_remainders_is_for(device: torch.device) -> None:
    """A few inputs that are many times the others, as models have: a third of rounding's error."""
    x = normal(40, 512, seed=16) * normal(512, seed=17).exp() ** 1.5
    weight = normal(60, 512, seed=18).bfloat16()
    packed = gemm.pack_linear(weight.to(device))
    exact = x.double() @ weight.double().T

    def error(**how: Any) -> float:
        result = gemm.packed_linear(x.to(device), packed, 60, input_dtype=torch.bfloat16, **how)
        return float((result.cpu().double() - exact).square().mean().sqrt())

    assert error(keep_remainders=True) < error() / 3


def test_only_rows_in_use_are_computed(device: torch.device) -> None:
    x = normal(300, 33, seed=14).to(device)
    packed = gemm.pack_linear(normal(20, 33, seed=15).bfloat16().to(device))
    every = gemm.packed_linear(x, packed, 20)
    in_use = torch.zeros(1, dtype=torch.int32, device=device)
    for count in (-1, 0, 1, 9, 299, 300, 301):
        in_use.fill_(count)
        result = gemm.packed_linear(x, packed, 20, rows_in_use=in_use)
        count = min(max(count, 0), 300)
        assert torch.equal(result[:count], every[:count])
    for wrong in (in_use.long(), in_use.expand(2)):
        with pytest.raises((TypeError, ValueError), match="rows_in_use"):
            gemm.packed_linear(x, packed, 20, rows_in_use=wrong)


def test_replays_compute_the_rows_in_use_then() -> None:
    x = normal(12, 40, seed=16).to("anvil")
    packed = gemm.pack_linear(normal(20, 40, seed=17).bfloat16().to("anvil"))
    every = gemm.packed_linear(x, packed, 20)
    in_use = torch.zeros(1, dtype=torch.int32, device="anvil")
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        result = gemm.packed_linear(x, packed, 20, rows_in_use=in_use)
    for count in (3, 12, 5):
        in_use.fill_(count)
        result.zero_()
        graph.replay()
        assert torch.equal(result[:count], every[:count]) and not result[count:].any()


def test_replays_of_a_graph_compute_again() -> None:
    x = torch.zeros(9, 64, dtype=torch.bfloat16, device="anvil")
    ids = torch.zeros(3, dtype=torch.int64, device="anvil")
    weight = normal(40, 64, seed=9).bfloat16().to("anvil")
    packed = gemm.pack_linear(weight)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        result = gemm.packed_linear(x, packed, 40, None, torch.float32)
        rows = embedding.packed_embedding(ids, packed, 40, 64)
    for seed in (10, 11):
        x.copy_(normal(9, 64, seed=seed))
        ids.copy_(torch.tensor([seed, 0, 39]))
        weight = normal(40, 64, seed=seed + 20).bfloat16().to("anvil")
        packed.copy_(gemm.pack_linear(weight))
        graph.replay()
        check(result, x, weight, None)
        assert torch.equal(rows, weight[ids])


def test_infinities_and_nan_go_through(device: torch.device) -> None:
    for dtype in DTYPES:
        x = torch.ones(3, 21)
        x[0, 3], x[1, 20] = float("inf"), float("nan")
        packed = gemm.pack_linear(torch.ones(5, 21, dtype=dtype, device=device))
        result = gemm.packed_linear(x.to(dtype).to(device), packed, 5).cpu()
        assert result[0].isinf().all() and result[1].isnan().all() and (result[2] == 21).all()


def test_packing_keeps_all_bits(device: torch.device) -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(16 * 16, 256).to(device)
    for dtype in (torch.bfloat16, torch.float16):
        packed = gemm.pack_linear(bits.view(dtype))
        back = gemm.unpack_linear(packed, 256, 256)
        assert torch.equal(back.view(torch.int16), bits)
        rows = embedding.packed_embedding(torch.arange(256, device=device), packed, 256, 256)
        assert torch.equal(rows.view(torch.int16), bits)


def test_refusals_name_the_argument(device: torch.device) -> None:
    x = torch.ones(2, 8, device=device)
    weight = torch.ones(20, 8, dtype=torch.bfloat16, device=device)
    packed = gemm.pack_linear(weight)
    with pytest.raises(TypeError, match="input must be float32"):
        gemm.packed_linear(x.double(), packed, 20)
    with pytest.raises(TypeError, match="weight must be float32"):
        gemm.pack_linear(weight.double())
    with pytest.raises(TypeError, match="dtype must be float32"):
        gemm.packed_linear(x, packed, 20, None, torch.float64)
    with pytest.raises(TypeError, match="input_dtype must be that of the weights, BFloat16, but"):
        gemm.packed_linear(x, packed, 20, input_dtype=torch.float16)
    for dtype in (None, torch.float16):
        other = gemm.pack_linear(weight.to(dtype or weight.dtype))
        with pytest.raises(ValueError, match="keep_remainders needs an input_dtype of bfloat16"):
            gemm.packed_linear(x, other, 20, input_dtype=dtype, keep_remainders=True)
    for wrong in (packed[1:], packed.transpose(0, 1), weight, packed.half()):
        with pytest.raises(ValueError, match=r"packed must be what anvil::pack_linear makes"):
            gemm.packed_linear(x, wrong, 20)
    with pytest.raises(ValueError, match=r"weight \[33, 8\]: \[3, 4, 16, 2\]"):
        gemm.packed_linear(x, packed, 33)
    with pytest.raises(ValueError, match=r"weight \[20, 6\]"):
        gemm.packed_linear(x[:, :6], packed, 20)
    with pytest.raises(ValueError, match="bias has 3 elements for 20 columns"):
        gemm.packed_linear(x, packed, 20, torch.ones(3, device=device))
    with pytest.raises(ValueError, match="unit must be 2 for BFloat16, but is 1"):
        gemm.pack_linear(weight, 1)
    with pytest.raises(ValueError, match="columns must be at least 0"):
        gemm.unpack_linear(packed, -1, 8)
