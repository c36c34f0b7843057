# SPDX-License-Identifier: Apache-2.0
"""Matrix products of tiles against float64."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import vllm_anvil.triton  # noqa: F401  (makes the device Triton's target)


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    place = c_ptr + m[:, None] * N + n[None, :]
    tl.store(place, tl.dot(a, b, tl.load(place), out_dtype=c_ptr.dtype.element_ty))


SIZES = [(1, 1, 1), (1, 64, 32), (16, 16, 16), (2, 8, 4), (32, 128, 64), (64, 4, 2), (8, 32, 128)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_product_plus_accumulator(dtype: torch.dtype, size: tuple[int, int, int]) -> None:
    m, n, k = size
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    c = torch.randn(m, n, generator=generator).to(wide)
    expected = c.double() + a.double() @ b.double()
    dot_kernel[(1,)](a, b, c, M=m, N=n, K=k)
    # Sums of k products, each with an error of the accumulator's precision.
    bound = (a.double().abs() @ b.double().abs() + 1) * torch.finfo(wide).eps * (k + 2)
    assert ((c.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_integers(size: tuple[int, int, int]) -> None:
    m, n, k = size
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (m, k), generator=generator).to(torch.int8)
    b = torch.randint(-128, 128, (k, n), generator=generator).to(torch.int8)
    c = torch.randint(-1000, 1000, (m, n), generator=generator).to(torch.int32)
    expected = c + a.int() @ b.int()
    dot_kernel[(1,)](a, b, c, M=m, N=n, K=k)
    assert torch.equal(c, expected)


@triton.jit
def batch_kernel(a_ptr, b_ptr, c_ptr, B: tl.constexpr, N: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None] * N * N
    place = batch + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(c_ptr + place, tl.dot(tl.load(a_ptr + place), tl.load(b_ptr + place)))


def test_batch_of_products() -> None:
    a, b = torch.randn(4, 16, 16), torch.randn(4, 16, 16)
    c = torch.zeros(4, 16, 16)
    batch_kernel[(1,)](a, b, c, B=4, N=16)
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-5)


@triton.jit
def chain_kernel(a_ptr, b_ptr, c_ptr, steps, N: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, b = tl.load(a_ptr + place), tl.load(b_ptr + place)
    total = tl.zeros((N, N), tl.float32)
    row = tl.zeros((N,), tl.float32)
    for _ in range(steps):
        product = tl.dot(a, tl.trans(b))
        weight = tl.exp(product - tl.max(product, 1)[:, None])
        row = row * 0.5 + tl.sum(weight, 1)
        total = tl.dot(weight, b, total * 0.5)
    tl.store(c_ptr + place, total / row[:, None])


@pytest.mark.parametrize("steps", [1, 3])
def test_products_of_products_in_a_loop(steps: int) -> None:
    """As in attention: two products, and an accumulator that is scaled each time."""
    a, b = torch.randn(32, 32) * 0.3, torch.randn(32, 32) * 0.3
    c = torch.zeros(32, 32)
    chain_kernel[(1,)](a, b, c, steps, N=32)
    expected = (a.double() @ b.double().T).softmax(-1) @ b.double()
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-6)


@triton.jit
def scaled_kernel(
    a_ptr, a_scale, b_ptr, b_scale, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, A_SCALED: tl.constexpr,
):  # fmt: skip
    m, n, group = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    a_inner: tl.constexpr = K // 2 if A == "e2m1" else K
    b_inner: tl.constexpr = K // 2 if B == "e2m1" else K
    a = tl.load(a_ptr + m[:, None] * a_inner + tl.arange(0, a_inner)[None, :])
    b = tl.load(b_ptr + tl.arange(0, b_inner)[:, None] * N + n[None, :])
    left = None
    if A_SCALED:
        left = tl.load(a_scale + m[:, None] * (K // 32) + group[None, :])
    right = tl.load(b_scale + n[:, None] * (K // 32) + group[None, :])
    total = tl.dot_scaled(a, left, A, b, right, B)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total)


def microscaled(
    rows: int, inner: int, form: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random elements [rows, inner] as stored, scales, and in float64 values and factors."""
    scale = torch.randint(120, 132, (rows, inner // 32), generator=generator).to(torch.uint8)
    if form == "e2m1":
        code = torch.randint(0, 16, (rows, inner), generator=generator)
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        values = torch.where(code < 8, table[code % 8], -table[code % 8])
        stored = (code[:, ::2] | code[:, 1::2] << 4).to(torch.uint8)
    else:
        dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
        stored = torch.randn(rows, inner, generator=generator).to(dtype[form])
        values = stored.double()
    factors = 2.0 ** (scale.double() - 127)
    return stored, scale, values, factors.repeat_interleave(32, 1)


@pytest.mark.parametrize("a_scaled", [True, False])
@pytest.mark.parametrize("forms", [("e4m3", "e4m3"), ("e4m3", "e2m1"), ("e2m1", "e5m2"),
                                   ("bf16", "e2m1")])  # fmt: skip
def test_microscaling_formats(forms: tuple[str, str], a_scaled: bool) -> None:
    m, n, k = 16, 32, 64
    generator = torch.Generator().manual_seed(0)
    a, a_scale, a_values, a_factors = microscaled(m, k, forms[0], generator)
    b, b_scale, b_values, b_factors = microscaled(n, k, forms[1], generator)
    c = torch.zeros(m, n)
    scaled_kernel[(1,)](a, a_scale, b.T.contiguous(), b_scale, c, M=m, N=n, K=k, A=forms[0],
                        B=forms[1], A_SCALED=a_scaled)  # fmt: skip
    left = a_values * a_factors if a_scaled else a_values
    expected = left @ (b_values * b_factors).T
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)
