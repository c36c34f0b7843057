# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings: queries and keys turned in place, by one op for all variants that differ in
their table of angles only.

vLLM looks for a replacement by the name of the class that is built, so each such class is named
here; `KEPT` names those that turn by other rules. Tables are used in the dtype that they have
(seams/hidden_states.py), where the engine's own layer converts them to the query's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.rotary_embedding import (
    DeepseekScalingRotaryEmbedding,
    DynamicNTKAlphaRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    Gemma4RotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    MRotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

import vllm_anvil.ops  # noqa: F401  registers torch.ops.anvil
from vllm_anvil.plugin.op_arguments import (
    DEVICES,
    INDEX_DTYPES,
    note_fallback,
    takes,
    takes_in_place,
)

# Classes that stay the engine's own, and why.
KEPT = {
    "BailingMRotaryEmbedding": "height and width alternate before time, in one table row",
    "DeepseekV4ScalingRotaryEmbedding": "turns the last elements of a head, and back again",
    "Ernie4_5_VLRotaryEmbedding": "height and width alternate before time, in one table row",
    "FourierRotaryEmbedding": "a table for each head, learned",
    "Llama4VisionRotaryEmbedding": "a table of complex numbers, without positions",
    "MRotaryEmbeddingInterleaved": "an order of axes of its own, found by search",
}


class _Turning(RotaryEmbeddingBase):
    """What all of them share: the op, and when it can be used."""

    def _turn(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor | None,
        sections: list[int],
        interleaved: bool,
    ) -> bool:
        """Turns `query` and `key` in place. False, with nothing done, where the op cannot.

        positions: [num_tokens], or [3, num_tokens] with `sections`. Queries and keys:
        [num_tokens, heads * head_size] or [num_tokens, heads, head_size].
        """
        table, head_size, tokens = self.cos_sin_cache, self.head_size, positions.shape[-1]
        taken = (
            takes(table)
            and takes_in_place(query, key)
            and positions.device.type in DEVICES
            and (positions.dim() == 1 or len(sections) == 3 == positions.shape[0])
            and all(
                states is None
                or (states.dim() == 2 and states.shape[0] == tokens)
                or (states.dim() == 3 and (states.shape[0], states.shape[2]) == (tokens, head_size))
                for states in (query, key)
            )
        )
        if not taken:
            name = type(self).__name__.removeprefix("Anvil")
            note_fallback(name, positions=positions, query=query, key=key, table=table)
            return False
        if positions.dtype not in INDEX_DTYPES:
            positions = positions.long()
        torch.ops.anvil.rotary_embedding.default(
            positions, query, key, head_size, table, self.is_neox_style, sections, interleaved
        )
        return True


class _Plain(_Turning):
    """One position a token. `forward` writes to query and key and returns them."""

    def forward_oot(
        self, positions: Tensor, query: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if self._turn(positions, query, key, [], False):
            return query, key
        return self.forward_native(positions, query, key)


class AnvilRotaryEmbedding(_Plain, RotaryEmbedding):
    """vLLM's RotaryEmbedding, in place."""


class AnvilLlama3RotaryEmbedding(_Plain, Llama3RotaryEmbedding):
    """vLLM's Llama3RotaryEmbedding, in place."""


class AnvilLinearScalingRotaryEmbedding(_Plain, LinearScalingRotaryEmbedding):
    """vLLM's LinearScalingRotaryEmbedding, in place."""


class AnvilNTKScalingRotaryEmbedding(_Plain, NTKScalingRotaryEmbedding):
    """vLLM's NTKScalingRotaryEmbedding, in place."""


class AnvilDynamicNTKScalingRotaryEmbedding(_Plain, DynamicNTKScalingRotaryEmbedding):
    """vLLM's DynamicNTKScalingRotaryEmbedding, in place."""


class AnvilDynamicNTKAlphaRotaryEmbedding(_Plain, DynamicNTKAlphaRotaryEmbedding):
    """vLLM's DynamicNTKAlphaRotaryEmbedding, in place."""


class AnvilYaRNScalingRotaryEmbedding(_Plain, YaRNScalingRotaryEmbedding):
    """vLLM's YaRNScalingRotaryEmbedding, in place."""


class AnvilGemma4RotaryEmbedding(_Plain, Gemma4RotaryEmbedding):
    """vLLM's Gemma4RotaryEmbedding, in place."""


class AnvilDeepseekScalingRotaryEmbedding(_Turning, DeepseekScalingRotaryEmbedding):
    """vLLM's DeepseekScalingRotaryEmbedding, in place. Its states are
    [num_tokens, heads, head_size]."""

    def forward_oot(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        shifted = positions if offsets is None else positions + offsets
        if query.dim() == 3 and self._turn(shifted, query, key, [], False):
            return query, key
        return self.forward_native(positions, query, key, offsets)


class AnvilMRotaryEmbedding(_Turning, MRotaryEmbedding):
    """vLLM's MRotaryEmbedding, in place: a position a token, or three of them (time, height,
    width), each of which turns its section of the pairs."""

    def forward_oot(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        sections = sections_of(self, positions)
        if self._turn(positions, query, key, sections, self.mrope_interleaved):
            return query, key
        return self.forward_native(positions, query, key, offsets)


def sections_of(layer: Any, positions: Tensor) -> list[int]:
    """How many pairs turn by each of a token's three positions; nothing where it has one."""
    return list(getattr(layer, "mrope_section", None) or ()) if positions.dim() == 2 else []


def turns_by_table(layer: Any) -> bool:
    """Whether a layer does what the op does with its table, and is not turned off."""
    return (
        isinstance(layer, (_Plain, AnvilMRotaryEmbedding))
        and layer._forward_method == layer.forward_oot
    )


def takes_positions(layer: Any, positions: Tensor) -> bool:
    """Whether the op takes a layer's positions as they are."""
    return (
        positions.dtype in INDEX_DTYPES
        and positions.device.type in DEVICES
        and (positions.dim() == 1 or len(sections_of(layer, positions)) == 3 == positions.shape[0])
    )


LAYERS: dict[str, type[Any]] = {
    "RotaryEmbedding": AnvilRotaryEmbedding,
    "Llama3RotaryEmbedding": AnvilLlama3RotaryEmbedding,
    "LinearScalingRotaryEmbedding": AnvilLinearScalingRotaryEmbedding,
    "NTKScalingRotaryEmbedding": AnvilNTKScalingRotaryEmbedding,
    "DynamicNTKScalingRotaryEmbedding": AnvilDynamicNTKScalingRotaryEmbedding,
    "DynamicNTKAlphaRotaryEmbedding": AnvilDynamicNTKAlphaRotaryEmbedding,
    "YaRNScalingRotaryEmbedding": AnvilYaRNScalingRotaryEmbedding,
    "Gemma4RotaryEmbedding": AnvilGemma4RotaryEmbedding,
    "DeepseekScalingRotaryEmbedding": AnvilDeepseekScalingRotaryEmbedding,
    "MRotaryEmbedding": AnvilMRotaryEmbedding,
}
