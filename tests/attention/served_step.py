# SPDX-License-Identifier: Apache-2.0
"""A step that is computed by whatever is served, and how tests serve with something."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anvil_attention import metadata, resolve, serving
from anvil_attention.contract import (
    AttentionImplementation,
    AttentionSpec,
)
from anvil_attention.impl import AnvilAttentionImpl

FILE = Path(__file__).with_name("user_attention.py")
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 4
SPEC = AttentionSpec(
    HEADS, KV_HEADS, SIZE, SIZE, BLOCK, torch.float32, torch.float32, SIZE**-0.5, device="cpu"
)
CPU = torch.device("cpu")


def serve(name: str, monkeypatch: pytest.MonkeyPatch) -> serving.Served:
    """Serves with one of Anvil's own, or with one of `user_attention`."""
    name = name if name in resolve.OWN else f"{FILE}:{name}"
    monkeypatch.setenv(serving.VARIABLE, name)
    return serving.served()


def serve_implementation(
    implementation: AttentionImplementation, monkeypatch: pytest.MonkeyPatch
) -> serving.Served:
    monkeypatch.setattr(serving, "_served", {"it": serving.Served("it", implementation)})
    monkeypatch.setenv(serving.VARIABLE, "it")
    return serving.served()


class Step:
    """A prefill of 6 tokens and a decode at 9, with a row and a request of padding."""

    def __init__(self, device: torch.device, kv_dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (12, KV_HEADS, BLOCK, 2 * SIZE)
        self.cache = torch.randn(shape, generator=generator).to(device, kv_dtype)
        self.query = torch.randn(8, HEADS, SIZE, generator=generator).to(device)
        self.output = torch.full_like(self.query, 7.0)
        self.table = torch.tensor([[3, 9, 99, 0], [7, 1, 5, -1], [99, -1, 0, 0]])

    def metadata(self) -> metadata.AnvilAttentionMetadata:
        def integers(values: Any) -> torch.Tensor:
            return torch.as_tensor(values, dtype=torch.int32, device=self.query.device)

        return metadata.AnvilAttentionMetadata(
            num_actual_tokens=7,
            max_query_len=6,
            max_seq_len=9,
            query_start_loc=integers([0, 6, 7, 7]),
            seq_lens=integers([6, 9, 99]),
            block_table=integers(self.table),
            slot_mapping=torch.full((7,), -1, device=self.query.device),
            causal=True,
            query_start_loc_cpu=torch.tensor([0, 6, 7, 7]),
            seq_lens_cpu=None,
        )

    def run(self, step: metadata.AnvilAttentionMetadata | None = None) -> torch.Tensor:
        impl = AnvilAttentionImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
        layer = SimpleNamespace(layer_name="model.layers.5.attn")
        step = step or self.metadata()
        impl.forward(layer, self.query, None, None, self.cache, step, self.output)
        return self.output.cpu()


def engine_config(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        speculative_config=None,
        model_config=SimpleNamespace(dtype=torch.float32),
        cache_config=SimpleNamespace(block_size=4),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8, max_num_seqs=2),
        **changes,
    )
