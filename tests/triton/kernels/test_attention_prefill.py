# SPDX-License-Identifier: Apache-2.0
"""Attention of prompts: without a cache, after a cached part, and beside decoding requests."""

import sys
from types import ModuleType

import pytest
import torch
from attention_reference import assert_attention, attend, causal_mask, tolerance
from comparison import int32, offsets, place
from torch import Tensor
from vllm.v1.attention.ops import prefix_prefill, triton_prefill_attention
from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

PROMPT = "vllm.v1.attention.ops.triton_prefill_attention:_fwd_kernel"
PREFIX = "vllm.v1.attention.ops.prefix_prefill:_fwd_kernel"
PREFIX_SLOPES = "vllm.v1.attention.ops.prefix_prefill:_fwd_kernel_alibi"
DECODE = "vllm.v1.attention.ops.chunked_prefill_paged_decode:kernel_paged_attention_2d"

PAGES, PAGE_SIZE = 16, 16


@pytest.mark.checks(PROMPT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("width", "causal", "before", "after", "with_sinks"),
    [(64, True, 0, 0, False), (40, False, 7, 11, True), (32, False, 0, 0, False)],
)
def test_prompt(
    device: torch.device,
    dtype: torch.dtype,
    width: int,
    causal: bool,
    before: int,
    after: int,
    with_sinks: bool,
) -> None:
    torch.manual_seed(6)
    lengths, heads, kv_heads = [1, 70, 33], 4, 2
    query = torch.randn(sum(lengths), heads, width).to(dtype)
    key, value = torch.randn(2, sum(lengths), kv_heads, width).to(dtype)
    sinks = torch.randn(heads) if with_sinks else None
    output = torch.empty_like(query, device=device)

    triton_prefill_attention.context_attention_fwd(
        *place(device, query, key, value),
        output,
        offsets(lengths)[:-1].to(device),
        int32(lengths, device),
        max(lengths),
        is_causal=causal,
        sliding_window_q=before or None,
        sliding_window_k=after or None,
        sinks=None if sinks is None else sinks.to(device),
    )

    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        place_of = torch.arange(length)
        distance = place_of[:, None] - place_of[None]
        mask = torch.ones(length, length, dtype=torch.bool)
        if causal:
            mask &= distance >= 0
        if before:
            mask &= distance <= before
        if after:
            mask &= distance >= -after
        expected = attend(query[rows], key[rows], value[rows], mask, width**-0.5, sinks=sinks)
        assert_attention(output[rows], expected, tolerance(dtype))
        start += length


class PagedBatch:
    """Sequences whose keys are in pages but for the new ones, which are there too.

    The caches are [pages, kv heads, width / x, page size, x] and [pages, kv heads, width,
    page size], and NaN wherever no key is.
    """

    def __init__(
        self, queries: list[int], lengths: list[int], heads: int, width: int, dtype: torch.dtype
    ):
        self.queries, self.lengths, kv_heads, x = queries, lengths, 2, 8
        self.keys = [torch.randn(length, kv_heads, width).to(dtype) for length in lengths]
        self.values = [torch.randn(length, kv_heads, width).to(dtype) for length in lengths]
        self.query = torch.randn(sum(queries), heads, width).to(dtype)
        self.key = torch.cat([k[-n:] for k, n in zip(self.keys, queries, strict=True)])
        self.value = torch.cat([v[-n:] for v, n in zip(self.values, queries, strict=True)])
        whole = torch.full((2, PAGES * PAGE_SIZE, kv_heads, width), torch.nan).to(dtype)
        columns = -(-max(lengths) // PAGE_SIZE)
        self.table = torch.zeros(len(lengths), columns, dtype=torch.int32)
        free = torch.randperm(PAGES).tolist()
        for row, length in enumerate(lengths):
            pages = [free.pop() for _ in range(-(-length // PAGE_SIZE))]
            self.table[row, : len(pages)] = int32(pages)
            slots = [pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(length)]
            whole[0, slots], whole[1, slots] = self.keys[row], self.values[row]
        pages = whole.view(2, PAGES, PAGE_SIZE, kv_heads, width)
        split = pages[0].unflatten(-1, (width // x, x))
        self.key_cache = split.permute(0, 2, 3, 1, 4).contiguous()
        self.value_cache = pages[1].permute(0, 2, 3, 1).contiguous()

    def check(
        self,
        output: Tensor,
        dtype: torch.dtype,
        window: int = 0,
        slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        start = 0
        scale = self.query.shape[-1] ** -0.5
        for row, (count, length) in enumerate(zip(self.queries, self.lengths, strict=True)):
            rows = slice(start, start + count)
            expected = attend(
                self.query[rows],
                self.keys[row],
                self.values[row],
                causal_mask(count, length, window),
                scale,
                sinks=sinks,
                slopes=slopes,
            )
            assert_attention(output[rows], expected, tolerance(dtype))
            start += count


@pytest.mark.parametrize(
    ("width", "window", "with_slopes", "with_sinks", "dtype"),
    [
        pytest.param(32, 0, False, False, torch.bfloat16, marks=pytest.mark.checks(PREFIX)),
        pytest.param(40, 13, False, True, torch.float32, marks=pytest.mark.checks(PREFIX)),
        pytest.param(24, 0, True, False, torch.bfloat16, marks=pytest.mark.checks(PREFIX_SLOPES)),
    ],
)
def test_prompt_after_cache(
    device: torch.device,
    width: int,
    window: int,
    with_slopes: bool,
    with_sinks: bool,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(7)
    heads = 4
    batch = PagedBatch([3, 40, 1], [3, 59, 50], heads, width, dtype)
    slopes = 2.0 ** -torch.arange(1.0, heads + 1) if with_slopes else None
    sinks = torch.randn(heads) if with_sinks else None
    output = torch.empty_like(batch.query, device=device)
    one = torch.ones(1, device=device)

    prefix_prefill.context_attention_fwd(
        *place(device, batch.query, batch.key, batch.value),
        output,
        "auto",
        *place(device, batch.key_cache, batch.value_cache, batch.table),
        offsets(batch.queries).to(device),
        int32(batch.lengths, device),
        max(batch.lengths),
        max(batch.queries),
        one,
        one,
        alibi_slopes=None if slopes is None else slopes.to(device),
        sliding_window=window,
        sinks=None if sinks is None else sinks.to(device),
    )

    batch.check(output, dtype, window, slopes, sinks)


@pytest.mark.checks(PREFIX, DECODE)
@pytest.mark.parametrize(
    ("heads", "width", "window", "dtype"),
    [(6, 40, 0, torch.bfloat16), (4, 24, 9, torch.float32)],
)
def test_prompts_beside_decoding(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    width: int,
    window: int,
    dtype: torch.dtype,
) -> None:
    # The function asks the ROCm platform for its own kernel, and that platform's module cannot
    # be imported without its driver.
    platform = ModuleType("vllm.platforms.rocm")
    platform.use_rocm_custom_paged_attention = lambda *_: False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, platform.__name__, platform)
    torch.manual_seed(8)
    batch = PagedBatch([1, 37, 1], [33, 60, 1], heads, width, dtype)
    output = torch.empty_like(batch.query, device=device)
    one = torch.ones(1, device=device)

    chunked_prefill_paged_decode(
        *place(device, batch.query, batch.key, batch.value),
        output,
        "auto",
        *place(device, batch.key_cache, batch.value_cache, batch.table),
        offsets(batch.queries).to(device),
        int32(batch.lengths, device),
        max(batch.lengths),
        max(batch.queries),
        one,
        one,
        sliding_window=window,
    )

    batch.check(output, dtype, window)
