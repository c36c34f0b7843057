# SPDX-License-Identifier: Apache-2.0
"""What a model's attention layers look like to a kernel."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch

from anvil_attention.contract import AttentionSpec


@dataclass(frozen=True)
class ModelShape:
    """Heads and options of a model's attention layers.

    Attributes:
        value_head_size: None: `head_size`.
        scale: factor on the logits; None: head_size ** -0.5.
        sliding_window, logits_soft_cap, has_sinks, has_alibi: as in `AttentionSpec`. Of models
            whose layers differ, those with a window; `--window 0` gives the others.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int | None = None
    scale: float | None = None
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False

    def spec(
        self, dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int, device: str
    ) -> AttentionSpec:
        """Raises ValueError for numbers that no layer can have."""
        sizes = {
            "heads": self.num_heads,
            "kv-heads": self.num_kv_heads,
            "head-size": self.head_size,
            "block-size": block_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads are no multiple of {self.num_kv_heads} kv-heads"
            )
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            value_head_size=self.value_head_size or self.head_size,
            block_size=block_size,
            dtype=dtype,
            kv_dtype=kv_dtype,
            scale=self.scale or self.head_size**-0.5,
            sliding_window=self.sliding_window,
            logits_soft_cap=self.logits_soft_cap,
            has_alibi=self.has_alibi,
            has_sinks=self.has_sinks,
            device=device,
        )


_SHAPES = (
    ModelShape("llama-3-8b", 32, 8, 128),
    ModelShape("llama-3-70b", 64, 8, 128),
    ModelShape("llama-3.2-1b", 32, 8, 64),
    ModelShape("qwen3-0.6b", 16, 8, 128),
    ModelShape("qwen3-4b", 32, 8, 128),
    ModelShape("qwen2.5-7b", 28, 4, 128),
    ModelShape("mistral-7b", 32, 8, 128, sliding_window=4096),
    ModelShape("gemma-2-9b", 16, 8, 256, sliding_window=4096, logits_soft_cap=50.0),
    ModelShape("gemma-3-4b", 8, 4, 256, sliding_window=1024),
    ModelShape("gpt-oss-20b", 64, 8, 64, sliding_window=128, has_sinks=True),
    ModelShape("phi-3-mini", 32, 32, 96),
    ModelShape("smollm2", 9, 3, 64),
    # Latent attention with its projections absorbed into the query: one KV head, whose key is the
    # latent (512) and the rotated part (64) and whose value is the latent. The contract has keys
    # and values apart, so the latent is stored and read twice. The scale is that of the head size
    # before absorption, 128 + 64.
    ModelShape("deepseek-v2-lite", 16, 1, 576, value_head_size=512, scale=192**-0.5),
)
MODEL_SHAPES = {shape.name: shape for shape in _SHAPES}


def model_shape(name: str) -> ModelShape:
    """Raises ValueError for a name that is not known, with what might be meant."""
    found = MODEL_SHAPES.get(name.lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), MODEL_SHAPES, n=1)
        meant = f" (is {close[0]} meant?)" if close else ""
        raise ValueError(
            f"there is no model shape {name!r}{meant}; there are {', '.join(MODEL_SHAPES)}, and "
            "--heads, --kv-heads and --head-size for others"
        )
    return found
