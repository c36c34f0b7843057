# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition: float64, one query at a time, over the keys that it sees.

It shares no code with what it is compared with. `Sketch` describes a call, and `sketches` draws
descriptions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st

from anvil_attention.contract import AttentionCall, AttentionSpec
from anvil_attention.synthetic_batch import Request, make_call


def dense_attention(call: AttentionCall) -> torch.Tensor:
    """[rows of requests, num_heads, value_head_size] float64 of a call on the CPU."""
    spec = call.spec
    group = spec.num_heads // spec.num_kv_heads
    query = call.query.double().numpy()
    keys = call.key_cache.double().numpy() * call.k_scale
    values = call.value_cache.double().numpy() * call.v_scale
    starts, lens = call.query_start_loc.tolist(), call.seq_lens.tolist()
    out = np.zeros((starts[-1], spec.num_heads, spec.value_head_size))
    for request, seq_len in enumerate(lens):
        rows = starts[request + 1] - starts[request]
        causal = call.causal if isinstance(call.causal, bool) else bool(call.causal[request])
        for row in range(rows):
            position = seq_len - rows + row
            seen = np.array(
                [
                    key
                    for key in range(seq_len)
                    if (not causal or key <= position)
                    and (spec.sliding_window is None or abs(key - position) < spec.sliding_window)
                ],
                dtype=np.int64,
            )
            blocks = call.block_table[request].numpy()[seen // spec.block_size]
            for head in range(spec.num_heads):
                place = (blocks, seen % spec.block_size, head // group)
                scores = spec.scale * (keys[place] @ query[starts[request] + row, head])
                if spec.logits_soft_cap is not None:
                    scores = spec.logits_soft_cap * np.tanh(scores / spec.logits_soft_cap)
                if call.alibi_slopes is not None:
                    scores = scores - float(call.alibi_slopes[head]) * np.abs(seen - position)
                sink = -math.inf if call.sinks is None else float(call.sinks[head])
                most = max([sink, *scores])
                if most > -math.inf:
                    weights = np.exp(scores - most)
                    total = weights.sum() + math.exp(sink - most)
                    out[starts[request] + row, head] = weights @ values[place] / total
    return torch.from_numpy(out)


@dataclass(frozen=True)
class Sketch:
    """A call in few words: what a failing example prints.

    Attributes:
        lens: (query tokens, tokens) of each request. More query tokens than tokens are allowed
            where there is no window.
        causal, layout, padding, seed, scales: as `synthetic_batch.make_call` has them.
    """

    spec: AttentionSpec
    lens: Sequence[tuple[int, int]]
    causal: bool | Sequence[bool] = True
    layout: str = "LBHNC"
    padding: int = 0
    seed: int = 0
    scales: tuple[float, float] = (1.0, 1.0)
    name: str = field(default="", compare=False)

    def call(self) -> AttentionCall:
        """The call on the CPU. Whatever it must not read is NaN."""
        call = make_call(
            self.spec,
            [Request(rows, max(rows, keys)) for rows, keys in self.lens],
            seed=self.seed,
            layout=self.layout,
            padding=self.padding,
            causal=self.causal,
            k_scale=self.scales[0],
            v_scale=self.scales[1],
        )
        seq_lens = call.seq_lens.clone()
        seq_lens[: len(self.lens)] = torch.tensor([keys for _, keys in self.lens])
        return dataclasses.replace(call, seq_lens=seq_lens)


LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


@st.composite
def batches(draw: st.DrawFn, window: int | None, longest: int) -> list[tuple[int, int]]:
    """(query tokens, tokens) of one to five requests: decodes, prompts, extensions, others."""

    def request() -> tuple[int, int]:
        kind = draw(st.sampled_from(["decode", "decode", "prompt", "extension", "cross", "none"]))
        if kind == "none":
            return 0, draw(st.integers(0, 9))
        if kind == "decode":
            return 1, draw(st.integers(1, longest))
        rows = draw(st.integers(1, 24))
        if kind == "prompt" or (kind == "cross" and window is not None):
            return rows, rows
        return rows, draw(st.integers(0, 40)) if kind == "cross" else rows + draw(
            st.integers(0, longest)
        )

    return [request() for _ in range(draw(st.integers(1, 5)))]


@st.composite
def sketches(
    draw: st.DrawFn,
    specs: st.SearchStrategy[AttentionSpec],
    *,
    longest: int = 60,
    per_request: bool = True,
    layouts: Sequence[str] = LAYOUTS,
) -> Sketch:
    """Calls of layers that `specs` draws.

    Args:
        longest: keys that a decode has at most.
        per_request: whether causality may differ between requests.
    """
    spec = draw(specs)
    lens = draw(batches(spec.sliding_window, longest))
    causal: bool | list[bool] = draw(st.booleans())
    if per_request and draw(st.booleans()):
        causal = [draw(st.booleans()) for _ in lens]
    scaled = spec.kv_dtype.itemsize == 1
    return Sketch(
        spec,
        lens,
        causal,
        layout=draw(st.sampled_from(layouts)),
        padding=draw(st.sampled_from([0, 0, 1, 3])),
        seed=draw(st.integers(0, 2**16)),
        scales=draw(st.sampled_from([(0.5, 2.0), (1.0, 0.25)])) if scaled else (1.0, 1.0),
    )


@st.composite
def any_spec(draw: st.DrawFn, device: str = "cpu") -> AttentionSpec:
    """Layers of every kind that the contract has."""
    kv_heads = draw(st.integers(1, 3))
    head_size = draw(st.sampled_from([1, 5, 8, 24, 33, 64]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
    return AttentionSpec(
        num_heads=kv_heads * draw(st.sampled_from([1, 2, 3, 7])),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=draw(st.sampled_from([head_size, head_size, 6, 17])),
        block_size=draw(st.sampled_from([1, 2, 3, 16, 20])),
        dtype=dtype,
        kv_dtype=draw(
            st.sampled_from(
                [
                    *[dtype] * 3,
                    torch.float8_e4m3fn,
                    torch.float8_e5m2,
                    torch.int8,
                    torch.bfloat16,
                ]
            )
        ),
        scale=head_size**-0.5 * draw(st.sampled_from([1.0, 1.5])),
        sliding_window=draw(st.sampled_from([None, None, 1, 2, 7, 16, 100])),
        logits_soft_cap=draw(st.sampled_from([None, None, 0.5, 30.0])),
        has_alibi=draw(st.booleans()),
        has_sinks=draw(st.booleans()),
        device=device,
    )
