# SPDX-License-Identifier: Apache-2.0
"""Writing keys and values to the paged cache, and merging two attentions of the same queries."""

import pytest
import torch
from comparison import Rows, assert_equal, int64, place
from vllm.v1.attention.ops import triton_reshape_and_cache_flash as caching
from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states
from vllm.v1.kv_cache_interface import KVQuantMode

MODULE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash:"
WRITE = MODULE + "reshape_and_cache_kernel_flash"
WRITE_WIDTHS = MODULE + "reshape_and_cache_kernel_flash_diffkv"
WRITE_QUANTISED = MODULE + "_reshape_cache_per_token_head"
MERGE = "vllm.v1.attention.ops.triton_merge_attn_states:merge_attn_states_kernel"

SLOTS = [5, -1, 0, 23, 11, 4]
PAGES, PAGE_SIZE = 3, 8


@pytest.mark.checks(WRITE)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("heads", "width"), [(3, 40), (1, 64)])
def test_write(
    device: torch.device, source: torch.dtype, fp8: bool, heads: int, width: int
) -> None:
    """The wrapper asks for CUDA's version, so the kernel is launched by itself."""
    torch.manual_seed(9)
    target = torch.float8_e4m3fn if fp8 else source
    key, value = (3 * torch.randn(2, len(SLOTS), heads, width)).to(source)
    before = torch.randn(2, PAGES, PAGE_SIZE, heads, width).to(target)
    rows = [Rows(t.flatten(1), device).view for t in (key, value)]
    caches = place(device, *before)
    scales = torch.tensor([0.5, 2.0])
    tile = 64

    caching.reshape_and_cache_kernel_flash[(len(SLOTS), -(-heads * width // tile))](
        *rows,
        *caches,
        int64(SLOTS, device),
        *place(device, *scales[:, None]),
        key_stride=rows[0].stride(0),
        value_stride=rows[1].stride(0),
        block_stride=caches[0].stride(0),
        head_stride=width,
        dim_stride_k=0,
        dim_stride_v=0,
        page_stride=caches[0].stride(1),
        num_heads=heads,
        head_size=width,
        block_size=PAGE_SIZE,
        x=1,
        USE_HEAD_MAJOR_LAYOUT=False,
        FP8_KV_CACHE=fp8,
        TILE_SIZE=tile,
    )

    for cache, old, new, scale in zip(caches, before, (key, value), scales, strict=True):
        expected = old.clone().flatten(0, 1)
        for token, slot in enumerate(SLOTS):
            if slot >= 0:
                expected[slot] = (new[token].float() / scale if fp8 else new[token]).to(target)
        assert_equal(cache.float(), expected.view_as(old).float())


@pytest.mark.checks(WRITE_WIDTHS)
def test_write_different_widths(device: torch.device) -> None:
    torch.manual_seed(10)
    heads, key_width, value_width = 2, 24, 17
    key = torch.randn(len(SLOTS), heads, key_width).bfloat16()
    value = torch.randn(len(SLOTS), heads, value_width).bfloat16()
    before = torch.randn(PAGES, PAGE_SIZE, heads, key_width + value_width).bfloat16()
    cache = before.clone().to(device)
    one = torch.ones(1, device=device)

    caching.triton_reshape_and_cache_flash_diffkv(
        *place(device, key, value), cache, int64(SLOTS, device), "auto", one, one
    )

    expected = before.clone().flatten(0, 1)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            expected[slot] = torch.cat([key[token], value[token]], -1)
    assert_equal(cache, expected.view_as(before))


@pytest.mark.checks(WRITE_QUANTISED)
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (torch.int8, KVQuantMode.INT8_PER_TOKEN_HEAD),
        (torch.float8_e4m3fn, KVQuantMode.FP8_PER_TOKEN_HEAD),
    ],
)
def test_write_quantised(device: torch.device, dtype: torch.dtype, mode: KVQuantMode) -> None:
    """Each head of each token has a scale of its own: its largest magnitude is the dtype's."""
    torch.manual_seed(11)
    heads, key_width, value_width = 3, 40, 24
    key = torch.randn(len(SLOTS), heads, key_width)
    value = torch.randn(len(SLOTS), heads, value_width) * 10
    key[0, 0] = 0
    caches = [
        torch.full((PAGES, PAGE_SIZE, heads, width), 3, device=device).to(dtype)
        for width in (key_width, value_width)
    ]
    scales = torch.full((2, PAGES, PAGE_SIZE, heads), -1.0, device=device)

    caching.triton_reshape_and_cache_flash_per_token_head_quant(
        *place(device, key, value), *caches, *scales, int64(SLOTS, device), mode
    )

    largest = 127.0 if dtype == torch.int8 else 448.0
    for cache, scale, new in zip(caches, scales.cpu(), (key, value), strict=True):
        found, scale = cache.cpu().float().flatten(0, 1), scale.flatten(0, 1)
        written = [slot for slot in SLOTS if slot >= 0]
        others = sorted(set(range(PAGES * PAGE_SIZE)) - set(written))
        assert (found[others] == 3).all() and (scale[others] == -1).all()
        tokens = new[[token for token, slot in enumerate(SLOTS) if slot >= 0]]
        wanted = (tokens.abs().amax(-1) / largest).clamp(min=1e-6)
        torch.testing.assert_close(scale[written], wanted, rtol=1e-6, atol=0)
        # Half a step of the integers; half a unit in the last place of three bits.
        step = 0.5 * scale[written][..., None]
        if dtype != torch.int8:
            step = (tokens.abs() / 16).clamp(min=2**-10 * scale[written][..., None])
        error = (found[written] * scale[written][..., None] - tokens).abs()
        assert (error <= step * 1.001).all()


@pytest.mark.checks(MERGE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("width", "with_context"), [(40, None), (64, 4)])
def test_merge(
    device: torch.device, dtype: torch.dtype, width: int, with_context: int | None
) -> None:
    torch.manual_seed(12)
    tokens, heads = 7, 3
    prefix, suffix = torch.randn(2, tokens, heads, width).to(dtype)
    prefix_lse, suffix_lse = torch.randn(2, heads, tokens) * 5
    # Nothing in the prefix, told in either way; nothing in the suffix; nothing at all.
    prefix_lse[0, 0], prefix_lse[1, 0] = -torch.inf, torch.inf
    suffix_lse[0, 1] = -torch.inf
    prefix_lse[2, 2] = suffix_lse[2, 2] = -torch.inf
    output = torch.empty_like(prefix, device=device)
    output_lse = torch.empty(tokens, heads, device=device).T

    merge_attn_states(
        output,
        *place(device, prefix, prefix_lse, suffix, suffix_lse),
        output_lse,
        prefill_tokens_with_context=with_context,
    )

    first = prefix_lse.double().masked_fill(prefix_lse == torch.inf, -torch.inf)
    if with_context is not None:
        first[:, with_context:] = -torch.inf
    second = suffix_lse.double()
    total = torch.logaddexp(first, second)
    weights = [torch.exp(part - total).nan_to_num(0).T[..., None] for part in (first, second)]
    parts = prefix.double(), suffix.double()
    expected = sum(w * part for w, part in zip(weights, parts, strict=True))
    size = sum(w * part.abs() for w, part in zip(weights, parts, strict=True))
    error = (output.cpu().double() - expected).abs()
    assert (error <= torch.finfo(dtype).eps * 4 * size).all()
    torch.testing.assert_close(output_lse.cpu().double(), total, rtol=1e-6, atol=1e-6)
