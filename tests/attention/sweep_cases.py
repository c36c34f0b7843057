# SPDX-License-Identifier: Apache-2.0
"""Calls of everything that the contract allows, for sweeps of thousands of cases.

`cases` draws them, small ones mostly: `WORK` bounds what one costs. `SweepCase` adds to a `Sketch`
where tensors lie in memory, and on which device the call is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from dense_attention import LAYOUTS, Sketch
from hypothesis import strategies as st
from torch import Tensor

from anvil_attention import verification
from anvil_attention.contract import AttentionCall, AttentionImplementation, AttentionSpec
from anvil_attention.synthetic_batch import poisoned
from anvil_attention.verification import PlacedCall
from vllm_anvil.testing.layouts import Placed

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
# Most multiplications and additions of a case, by its size. Each is small enough for a case to take
# milliseconds, on the scalar instruction set too.
WORK = {"small": 1 << 18, "medium": 1 << 20, "large": 3 << 20, "huge": 1 << 24}
HUGE = 1e3
# Beyond a request's length its row of the block table holds anything.
ANYTHING = (-(1 << 31), -1, (1 << 31) - 1)


@dataclass(frozen=True)
class SweepCase(Sketch):
    """A call in few words, and where it is made.

    Attributes:
        device: where the call is made.
        heads_first: whether query and output are [num_heads, num_tokens, size] in memory.
        offset: elements by which they are out of line with 64 bytes, and between their rows.
        shared: whether values are the first elements of their keys, as those of latent attention
            are.
        query_factor: what a query of normally distributed numbers is multiplied by. From `HUGE` on
            all but a head's first element are 0.
        batch_invariant: whether a row's result must not depend on the batch.
    """

    device: str = "cpu"
    heads_first: bool = False
    offset: int = 0
    shared: bool = False
    query_factor: float = 1.0
    batch_invariant: bool = False

    def call(self) -> AttentionCall:
        call = super().call()
        query = self._memory(call.query.shape, call.query.dtype).view
        query.copy_(call.query * self.query_factor)
        if self.query_factor >= HUGE:
            # Products of such a size that cancel out would leave nothing but their rounding.
            query[..., 1:] = 0
        values = call.value_cache
        if self.shared:
            values = call.key_cache[..., : self.spec.value_head_size]
        table = _table_with_anything(call)
        return dataclasses.replace(call, query=query, value_cache=values, block_table=table)

    def placed(self, implementation: AttentionImplementation) -> PlacedCall:
        """The call on its device, between guards."""
        placed = verification.place_call(self.call(), self.device, implementation)
        output = self._memory(placed.host.output.shape, self.spec.dtype, self.device)
        call = dataclasses.replace(placed.call, output=output.view)
        return dataclasses.replace(placed, call=call, output=output)

    def features(self) -> Iterator[str]:
        """What is special about the case: a sweep says how often it had each."""
        spec, lens = self.spec, [(rows, keys) for rows, keys in self.lens if rows]
        yield f"query {spec.dtype}"
        yield f"cache {spec.kv_dtype}"
        yield f"on {self.device}"
        rows, keys = (max((pair[i] for pair in lens), default=0) for i in (0, 1))
        group = spec.num_heads // spec.num_kv_heads
        facts = {
            "a cache of another type": spec.kv_dtype != spec.dtype,
            "values of another size": spec.value_head_size != spec.head_size,
            "values that are parts of keys": self.shared,
            "an odd head size": spec.head_size % 2 == 1,
            "heads of more than 256": spec.head_size > 256,
            "groups of more than 8 heads": group > 8,
            "blocks of more than 64 tokens": spec.block_size > 64,
            "blocks of one token": spec.block_size == 1,
            "a window": spec.sliding_window is not None,
            "a window of less than the keys": (spec.sliding_window or keys) < keys,
            "a soft cap": spec.logits_soft_cap is not None,
            "huge logits": self.query_factor >= HUGE,
            "large logits": 1 < self.query_factor < HUGE,
            "slopes": spec.has_alibi,
            "sinks": spec.has_sinks,
            "causal": self.causal is True,
            "not causal": self.causal is False,
            "causal per request": not isinstance(self.causal, bool),
            "scales": self.scales != (1.0, 1.0),
            "heads before tokens": self.heads_first,
            "unaligned rows": self.offset > 0,
            "padding": self.padding > 0,
            "more than 8 requests": len(self.lens) > 8,
            "requests without rows": any(not rows for rows, _ in self.lens),
            "requests without keys": any(not keys for _, keys in lens),
            "more rows than keys": any(rows > keys > 0 for rows, keys in lens),
            "more than 48 rows": rows > 48,
            "more than 64 keys": keys > 64,
            "more than 48 rows of more than 64 keys": any(r > 48 and k > 64 for r, k in lens),
            "more than 512 keys": keys > 512,
            "more than 2048 keys": keys > 2048,
            "batch invariant": self.batch_invariant,
        }
        yield from (name for name, true in facts.items() if true)

    def _memory(self, shape: torch.Size, dtype: torch.dtype, device: str = "cpu") -> Placed:
        """[tokens, num_heads, size] within poisoned memory, in the case's order."""
        tokens, heads, size = shape
        guard = 64 + self.offset
        row = size + self.offset
        strides = (heads * row + self.offset, row, 1)
        if self.heads_first:
            strides = (row, tokens * row, 1)
        buffer = poisoned(2 * guard + tokens * (heads * row + self.offset), dtype).to(device)
        return Placed(buffer.as_strided(shape, strides, guard), buffer)


def _table_with_anything(call: AttentionCall) -> Tensor:
    """The block table, as columns of a wider one, with numbers beyond each length that lead
    nowhere."""
    table = call.block_table
    wide = torch.full((table.shape[0], table.shape[1] + 3), ANYTHING[0], dtype=torch.int32)
    used = (call.seq_lens + call.spec.block_size - 1) // call.spec.block_size
    column = torch.arange(table.shape[1])
    anything = torch.tensor(ANYTHING, dtype=torch.int32)[column % len(ANYTHING)]
    wide[:, : table.shape[1]] = torch.where(column < used[:, None], table, anything)
    return wide[:, : table.shape[1]]


@st.composite
def layers(draw: st.DrawFn) -> AttentionSpec:
    """Layers of every kind."""
    dtype = draw(st.sampled_from([BRAIN, BRAIN, FULL, HALF]))
    kv_dtype = draw(st.sampled_from([None, None, None, *BYTES, BRAIN, HALF, FULL])) or dtype
    head_size = draw(
        st.one_of(
            st.sampled_from([64, 128, 8, 16, 32, 40, 80, 96, 192, 256, 576]),
            st.integers(1, 40),
            st.integers(1, 600).map(lambda size: min(size, 576)),
        )
    )
    value_size = draw(
        st.one_of(st.none(), st.none(), st.sampled_from([64, 128, 512]), st.integers(1, 140))
    )
    kv_heads = draw(st.sampled_from([1, 1, 2, 3, 4]))
    group = draw(st.one_of(st.sampled_from([1, 3, 4, 8]), st.integers(1, 16)))
    return AttentionSpec(
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=value_size or head_size,
        block_size=draw(st.one_of(st.sampled_from([16, 16, 32, 128, 1]), st.integers(1, 128))),
        dtype=dtype,
        kv_dtype=kv_dtype,
        scale=head_size**-0.5 * draw(st.sampled_from([1.0, 1.0, 1.5])),
        sliding_window=draw(
            st.one_of(
                *(st.none(), st.none(), st.sampled_from([1, 2, 48, 64, 128]), st.integers(1, 400))
            )
        ),
        logits_soft_cap=draw(st.sampled_from([None, None, 0.5, 30.0])),
        has_alibi=draw(st.integers(0, 3)) == 0,
        has_sinks=draw(st.integers(0, 3)) == 0,
    )


# Lengths at which something changes: blocks of 64 keys, tiles of 48 rows, splits of some hundreds.
EDGES = (1, 15, 16, 17, 47, 48, 49, 63, 64, 65, 127, 128, 129, 256, 257, 511, 512, 513, 700)


# Cross: rows beside keys of something else, so that there may be more of them, or no keys at all.
KINDS = ("decode",) * 3 + ("prompt",) + ("chunk",) * 3 + ("cross",) * 2 + ("empty",)


@st.composite
def lengths(draw: st.DrawFn, spec: AttentionSpec, work: int) -> list[tuple[int, int]]:
    """(query tokens, tokens) of one to twelve requests that take `work` together."""
    left = max(1, work // (spec.num_heads * (spec.head_size + spec.value_head_size)))
    any_length = st.integers(0, 700) if work < WORK["huge"] else st.integers(1900, 3000)
    found = []
    for _ in range(draw(st.sampled_from((1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12)))):
        kind = draw(st.sampled_from(KINDS))
        # A window begins to the left of a row: before the first key there is nothing to begin at.
        if kind == "cross" and spec.sliding_window is not None:
            kind = "chunk"
        rows = {"decode": 1, "empty": 0}.get(kind, -1)
        if rows < 0:
            rows = draw(st.integers(1, 70))
        keys = rows if kind == "prompt" else draw(st.one_of(st.sampled_from(EDGES), any_length))
        if kind == "cross":
            keys = draw(st.sampled_from((0, keys % rows, keys)))
        keys = min(keys, left)
        rows = min(rows, max(1, left // max(1, keys)))
        if kind in ("decode", "chunk", "prompt"):
            keys = max(keys, rows)
        left = max(1, left - rows * keys)
        found.append((rows, keys))
    return found


@st.composite
def cases(draw: st.DrawFn, devices: tuple[str, ...] = ("cpu", "anvil")) -> SweepCase:
    """Calls of every kind."""
    spec = draw(layers())
    size = draw(st.sampled_from(["small"] * 9 + ["medium"] * 7 + ["large"] * 3 + ["huge"]))
    lens = draw(lengths(spec, WORK[size]))
    causal: bool | list[bool] = draw(st.sampled_from((True, True, False)))
    if draw(st.integers(0, 5)) == 0:
        causal = draw(st.lists(st.booleans(), min_size=len(lens), max_size=len(lens)))
    device = draw(st.sampled_from(devices))
    factors = [1.0, 1.0, 1.0, 6.0]
    if spec.logits_soft_cap is not None:
        factors.append(3e3 if spec.dtype == HALF else 1e30)
    return SweepCase(
        dataclasses.replace(spec, device=device),
        lens,
        causal,
        layout=draw(st.sampled_from(LAYOUTS)),
        padding=draw(st.sampled_from((0, 0, 1, 3))),
        seed=draw(st.integers(0, 1 << 16)),
        scales=(1.0, 1.0)
        if spec.kv_dtype not in BYTES
        else draw(st.sampled_from([(0.5, 2.0), (1.0, 0.25), (1.0, 1.0)])),
        device=device,
        heads_first=draw(st.booleans()),
        offset=draw(st.sampled_from((0, 0, 1, 3, 8))),
        shared=spec.value_head_size <= spec.head_size and draw(st.integers(0, 3)) == 0,
        query_factor=draw(st.sampled_from(factors)),
        batch_invariant=draw(st.booleans()),
    )
