# SPDX-License-Identifier: Apache-2.0
"""A paged cache of four-bit keys and values: how they are written, and attention over them."""

import pytest
import torch
from attention_reference import assert_attention, attend, causal_mask, tolerance
from comparison import int32, int64, offsets, place
from torch import Tensor
from vllm.v1.attention.ops import int4_per_token_head

MODULE = "vllm.v1.attention.ops.int4_per_token_head"
HEADS, KV_HEADS, WIDTH, PAGES, PAGE_SIZE = 4, 2, 32, 12, 16


def rotation() -> Tensor:
    """float64 [width, width]: rows are what the stored vectors' elements are of the true ones.

    Orthogonal but for the factor `WIDTH`, the square of its rows' length.
    """
    matrix = int4_per_token_head.single_rht(torch.eye(WIDTH)).double().T
    assert torch.equal(matrix @ matrix.T, WIDTH * torch.eye(WIDTH).double())
    return matrix


def unpacked(cache: Tensor, scales: Tensor) -> Tensor:
    """float64 [..., width] of bytes [..., width / 2] and scales whose last four bits are zeros'."""
    words = scales.cpu().view(torch.int32)
    zero, scale = words & 15, (words & -16).view(torch.float32).double()
    stored = cache.cpu()
    values = torch.stack([stored & 15, stored >> 4], -1).flatten(-2)
    return (values.double() - zero[..., None]) * scale[..., None]


@pytest.mark.checks(f"{MODULE}:_reshape_cache_int4_kernel")
def test_write(device: torch.device) -> None:
    torch.manual_seed(1)
    slots = [5, -1, 0, 100, 191]
    key, value = torch.randn(2, len(slots), KV_HEADS, WIDTH) + 0.3
    caches = torch.full(
        (2, PAGES, PAGE_SIZE, KV_HEADS, WIDTH // 2), 255, dtype=torch.uint8, device=device
    )
    scales = torch.full((2, PAGES, PAGE_SIZE, KV_HEADS), -1.0, device=device)

    int4_per_token_head.reshape_and_cache_int4(
        *place(device, key, value),
        *caches,
        int64(slots, device),
        k_scale_cache=scales[0],
        v_scale_cache=scales[1],
    )

    written = [slot for slot in slots if slot >= 0]
    others = sorted(set(range(PAGES * PAGE_SIZE)) - set(written))
    there = [index for index, slot in enumerate(slots) if slot >= 0]
    for cache, scale, vectors in zip(caches, scales, (key, value), strict=True):
        flat, flat_scale = cache.flatten(0, 1).cpu(), scale.flatten(0, 1).cpu()
        assert (flat[others] == 255).all() and (flat_scale[others] == -1).all()
        true = vectors[there].double() @ rotation().T
        found = unpacked(flat[written], flat_scale[written])
        step = (true.amax(-1) - true.amin(-1)) / 15
        # The zero is rounded too, so that the ends may be off by a whole step.
        error = (found - true).abs() / step[..., None]
        assert (error <= 1.001).all() and error.pow(2).mean().sqrt() < 0.35


@pytest.mark.checks(f"{MODULE}:_attn_packed")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention(device: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    queries, lengths = [3, 1, 21], [3, 40, 50]
    shape = (2, PAGES, PAGE_SIZE, KV_HEADS)
    caches = torch.randint(0, 256, (*shape, WIDTH // 2)).to(torch.uint8)
    bits = (torch.rand(shape) / 8 + 0.02).view(torch.int32) & -16
    scales = (bits | torch.randint(0, 16, shape, dtype=torch.int32)).view(torch.float32)
    table = torch.randperm(PAGES)[: 3 * 4].view(3, 4).int()
    query = torch.randn(sum(queries), HEADS, WIDTH).to(dtype)
    output = torch.empty_like(query, device=device)

    int4_per_token_head.unified_attention_int4(
        query.to(device),
        *caches.to(device),
        output,
        cu_seqlens_q=offsets(queries).to(device),
        max_seqlen_q=max(queries),
        seqused_k=int32(lengths, device),
        max_seqlen_k=max(lengths),
        softmax_scale=WIDTH**-0.5,
        window_size=(-1, -1),
        block_table=table.to(device),
        softcap=0.0,
        sinks=None,
        alibi_slopes=None,
        use_alibi_sqrt=False,
        qq_bias=None,
        output_scale=None,
        mm_prefix_range=None,
        k_scale_cache=scales[0].to(device),
        v_scale_cache=scales[1].to(device),
    )

    # The true vectors, from the stored ones.
    key, value = (
        unpacked(cache, scale) @ rotation() / WIDTH
        for cache, scale in zip(caches, scales, strict=True)
    )
    # What is added up to make a value's element, which may be nothing by cancellation.
    size = unpacked(caches[1], scales[1]).abs() @ rotation().abs() / WIDTH
    start = 0
    for row, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        used = table[row].long()
        rows = slice(start, start + count)
        expected, magnitudes = (
            attend(
                query[rows],
                key[used].flatten(0, 1)[:length],
                vectors[used].flatten(0, 1)[:length],
                causal_mask(count, length),
                WIDTH**-0.5,
            )
            for vectors in (value, size)
        )
        assert_attention(output[rows], expected._replace(size=magnitudes.output), tolerance(dtype))
        start += count


@pytest.mark.checks(f"{MODULE}:_hadamard_mma_kernel")
@pytest.mark.parametrize("width", [16, 128])
def test_hadamard(device: torch.device, width: int) -> None:
    torch.manual_seed(3)
    values = torch.randn(21, width).bfloat16()

    result = int4_per_token_head._triton_hadamard_transform(values.to(device))

    matrix = torch.ones(1, 1).double()
    while len(matrix) < width:
        matrix = torch.kron(torch.tensor([[1, 1], [1, -1]]).double(), matrix)
    expected = values.double() @ matrix
    size = values.double().abs().sum(-1, keepdim=True)
    error = (result.cpu().double() - expected).abs()
    assert (error <= 2**-8 * expected.abs() + 1e-6 * size).all()
