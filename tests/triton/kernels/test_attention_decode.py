# SPDX-License-Identifier: Apache-2.0
"""Decoding over splits of the keys, then their merge: one or several queries for a key's head."""

import pytest
import torch
from attention_reference import assert_attention, attend, tolerance
from comparison import int32, place
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

MODULE = "vllm.v1.attention.ops.triton_decode_attention"
NORMAL = f"{MODULE}:_fwd_kernel_stage1"
GROUPED = f"{MODULE}:_fwd_grouped_kernel_stage1"
MERGE = f"{MODULE}:_fwd_kernel_stage2"


@pytest.mark.checks(MERGE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "key_width", "value_width", "page_size", "logit_cap"),
    [
        pytest.param(3, 3, 48, 40, 4, 0.0, marks=pytest.mark.checks(NORMAL)),
        pytest.param(2, 2, 64, 64, 16, 5.0, marks=pytest.mark.checks(NORMAL)),
        pytest.param(6, 2, 40, 24, 16, 0.0, marks=pytest.mark.checks(GROUPED)),
        # One latent vector is the key, and all but its end the value.
        pytest.param(18, 1, 80, 64, 8, 0.0, marks=pytest.mark.checks(GROUPED), id="latent"),
    ],
)
def test_decode_attention(
    device: torch.device,
    request: pytest.FixtureRequest,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    key_width: int,
    value_width: int,
    page_size: int,
    logit_cap: float,
) -> None:
    torch.manual_seed(5)
    latent = "latent" in request.node.callspec.id
    lengths, splits, pages = [1, 3, 90], 4, 40
    key = torch.randn(pages, page_size, kv_heads, key_width).to(dtype)
    value = torch.randn(pages, page_size, kv_heads, value_width).to(dtype)
    if latent:
        value = key[..., :value_width]
    table = torch.stack(
        [torch.randperm(pages)[: -(-max(lengths) // page_size)] for _ in lengths]
    ).int()
    query = torch.randn(len(lengths), heads, key_width).to(dtype)
    output = torch.empty(len(lengths), heads, value_width, dtype=dtype, device=device)
    lse = torch.empty(len(lengths), heads, device=device)
    partial = torch.full((len(lengths), heads, splits, value_width + 1), torch.nan, device=device)
    placed = key.to(device)

    decode_attention_fwd(
        query.to(device),
        placed,
        placed[..., :value_width] if latent else value.to(device),
        output,
        lse,
        *place(device, table),
        int32(lengths, device),
        partial,
        splits,
        key_width**-0.5,
        page_size,
        logit_cap=logit_cap,
        is_mla=latent,
    )

    for row, length in enumerate(lengths):
        used = table[row].long()
        expected = attend(
            query[row : row + 1],
            key[used].flatten(0, 1)[:length],
            value[used].flatten(0, 1)[:length],
            torch.ones(1, length, dtype=torch.bool),
            key_width**-0.5,
            logit_cap,
        )
        # One query by itself is multiplied element by element, which rounds 16-bit products.
        rounds = dtype == torch.bfloat16 and heads == kv_heads
        epsilon = tolerance(dtype) * (4 if rounds else 1)
        assert_attention(output[row : row + 1], expected, epsilon)
        error = (lse[row].cpu().double() - expected.lse[0]).abs().max()
        assert error <= (0.03 if rounds else 1e-5), f"lse off by {error}"
