# SPDX-License-Identifier: Apache-2.0
"""Attention over a paged cache in one kernel: prompts, and decoding in segments."""

import pytest
import torch
from attention_reference import assert_attention, attend, causal_mask, tolerance
from comparison import int32, offsets, place
from torch import Tensor
from vllm.v1.attention.ops.triton_unified_attention import unified_attention
from vllm.v1.kv_cache_interface import KVQuantMode

UNIFIED = "vllm.v1.attention.ops.triton_unified_attention:kernel_unified_attention"
REDUCE = "vllm.v1.attention.ops.triton_unified_attention:reduce_segments"

PAGES = 24
# Features that a model may ask for: window, softcap, sinks, slopes.
PLAIN = (0, 0.0, False, False)


def paged(
    lengths: list[int], kv_heads: int, width: int, page_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random caches [pages, page size, kv heads, width] and a table of scattered pages.

    The table's unused entries name a page that is all NaN, which nobody may use.
    """
    key = torch.randn(PAGES, page_size, kv_heads, width).to(dtype)
    value = torch.randn(PAGES, page_size, kv_heads, width).to(dtype)
    columns = -(-max(lengths) // page_size) + 1
    table = torch.full((len(lengths), columns), PAGES - 1, dtype=torch.int32)
    free = torch.randperm(PAGES - 1).tolist()
    for row, length in enumerate(lengths):
        for column in range(-(-length // page_size)):
            table[row, column] = free.pop()
    key[-1] = value[-1] = float("nan")
    return key, value, table


@pytest.mark.checks(UNIFIED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "page_size", "features"),
    [
        (4, 4, 64, 16, PLAIN),
        (6, 2, 40, 16, (0, 0.0, True, True)),
        (8, 1, 32, 32, (9, 3.0, False, False)),
    ],
)
@pytest.mark.parametrize("segments", [0, 4])
def test_unified_attention(
    device: torch.device,
    launched: set[str],
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    width: int,
    page_size: int,
    features: tuple[int, float, bool, bool],
    segments: int,
) -> None:
    torch.manual_seed(3)
    window, softcap, with_sinks, with_slopes = features
    queries, lengths = ([1, 1, 1], [1, 77, 130]) if segments else ([5, 1, 37], [5, 66, 101])
    key, value, table = paged(lengths, kv_heads, width, page_size, dtype)
    query = torch.randn(sum(queries), heads, width).to(dtype)
    sinks = torch.randn(heads).to(dtype) if with_sinks else None
    slopes = 2.0 ** -torch.arange(1.0, heads + 1) if with_slopes else None
    scale = width**-0.5
    output = torch.empty_like(query, device=device)
    scratch = (len(query), heads, segments)
    on_device = [None if t is None else t.to(device) for t in (sinks, slopes)]

    unified_attention(
        *place(device, query, key, value),
        output,
        offsets(queries).to(device),
        max(queries),
        int32(lengths, device),
        max(lengths),
        scale,
        True,
        (window - 1, 0) if window else (-1, -1),
        table.to(device),
        softcap,
        None,
        None,
        None,
        seq_threshold_3D=8 if segments else None,
        num_par_softmax_segments=segments or None,
        softmax_segm_output=torch.full((*scratch, 64), torch.nan, device=device),
        softmax_segm_max=torch.full(scratch, torch.nan, device=device),
        softmax_segm_expsum=torch.full(scratch, torch.nan, device=device),
        sinks=on_device[0],
        alibi_slopes=on_device[1],
    )

    assert (REDUCE in launched) == bool(segments)
    start = 0
    for row, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        pages = table[row].long()
        expected = attend(
            query[start : start + count],
            key[pages].flatten(0, 1)[:length],
            value[pages].flatten(0, 1)[:length],
            causal_mask(count, length, window),
            scale,
            softcap,
            sinks,
            slopes,
        )
        assert_attention(output[start : start + count], expected, tolerance(dtype))
        start += count


@pytest.mark.checks(UNIFIED, REDUCE)
def test_fp8_cache(device: torch.device) -> None:
    """Keys and values of float8, each with a scale of its own for the whole cache."""
    torch.manual_seed(4)
    lengths, heads, kv_heads, width = [40, 3], 4, 2, 32
    key, value, table = paged(lengths, kv_heads, width, 32, torch.float32)
    key, value = key.to(torch.float8_e4m3fn), value.to(torch.float8_e4m3fn)
    query = torch.randn(len(lengths), heads, width).bfloat16()
    output = torch.empty_like(query, device=device)
    scratch = (len(query), heads, 2)

    unified_attention(
        *place(device, query, key, value),
        output,
        offsets([1, 1]).to(device),
        1,
        int32(lengths, device),
        max(lengths),
        0.25,
        True,
        (-1, -1),
        table.to(device),
        0.0,
        None,
        torch.tensor([0.5], device=device),
        torch.tensor([2.0], device=device),
        seq_threshold_3D=8,
        num_par_softmax_segments=2,
        softmax_segm_output=torch.full((*scratch, 32), torch.nan, device=device),
        softmax_segm_max=torch.full(scratch, torch.nan, device=device),
        softmax_segm_expsum=torch.full(scratch, torch.nan, device=device),
        kv_quant_mode=KVQuantMode.FP8_PER_TENSOR,
    )

    for row, length in enumerate(lengths):
        pages = table[row].long()
        expected = attend(
            query[row : row + 1],
            key.float()[pages].flatten(0, 1)[:length] * 0.5,
            value.float()[pages].flatten(0, 1)[:length] * 2.0,
            causal_mask(1, length),
            0.25,
        )
        assert_attention(output[row : row + 1], expected, tolerance(torch.bfloat16))
