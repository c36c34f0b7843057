# SPDX-License-Identifier: Apache-2.0
"""The engine's layer for multi-head latent attention, with ours in it, and what it must compute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from anvil_attention.mla_backend import AnvilMLABackend, AnvilMLAPrefillBackend
from anvil_attention.mla_metadata import AnvilMLAMetadata, AnvilMLAMetadataBuilder

NAME = "layers.0.attn"


@dataclass(frozen=True)
class Sizes:
    """Of a layer: latent, part of a key with the position, the other part, value; heads."""

    rank: int
    rope: int
    nope: int
    value: int
    heads: int

    @property
    def scale(self) -> float:
        return (self.nope + self.rope) ** -0.5


SMALL = Sizes(rank=64, rope=16, nope=32, value=24, heads=4)
DEEPSEEK = Sizes(rank=512, rope=64, nope=128, value=128, heads=2)


class _Projection(torch.nn.Module):
    """As `kv_b_proj`: its weight and what the engine asks a linear layer without quantisation."""

    quant_method = None

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.params_dtype = weight.dtype


class Layer:
    """A layer with random weights and a cache that is NaN where nothing was written.

    Args:
        dtype: of weights and cache.
        hidden: of what the layer is given and returns.
        window: sliding window.
        layers_in_block: 1, or more where another layer's latents lie between a block's and the next
            one's.
    """

    def __init__(
        self,
        sizes: Sizes,
        device: torch.device,
        dtype: torch.dtype,
        hidden: torch.dtype | None = None,
        *,
        block_size: int = 8,
        num_blocks: int = 80,
        window: int | None = None,
        layers_in_block: int = 1,
    ) -> None:
        self.sizes, self.device, self.dtype = sizes, device, dtype
        self.hidden = hidden or dtype
        self.block_size, self.num_blocks, self.window = block_size, num_blocks, window
        generator = torch.Generator().manual_seed(0)
        width = sizes.heads * (sizes.nope + sizes.value)
        weight = torch.randn(width, sizes.rank, generator=generator) * sizes.rank**-0.5
        self.weight = weight.to(dtype)
        with ExitStack() as stack:
            stack.enter_context(set_current_vllm_config(VllmConfig()))
            self.layer = MLAAttention(
                num_heads=sizes.heads,
                scale=sizes.scale,
                qk_nope_head_dim=sizes.nope,
                qk_rope_head_dim=sizes.rope,
                v_head_dim=sizes.value,
                q_lora_rank=None,
                kv_lora_rank=sizes.rank,
                kv_b_proj=_Projection(self.weight.to(device)),
                prefix=NAME,
                attn_backend=AnvilMLABackend,
                prefill_backend_cls=AnvilMLAPrefillBackend,
                sliding_window=window,
            )
        self.layer.process_weights_after_loading(self.hidden)
        content = sizes.rank + sizes.rope
        shape = (num_blocks, 1, layers_in_block, block_size, content)
        cache = torch.full(shape, float("nan"), dtype=dtype, device=device)
        self.layer.bind_kv_cache(cache[:, :, -1])
        order = torch.randperm(num_blocks - 1, generator=generator) + 1
        self._free = iter(order.tolist())

    def builder(self) -> AnvilMLAMetadataBuilder:
        spec = MLAAttentionSpec(
            block_size=self.block_size,
            num_kv_heads=1,
            head_size=self.sizes.rank + self.sizes.rope,
            dtype=self.dtype,
        )
        config = SimpleNamespace(
            speculative_config=None,
            model_config=SimpleNamespace(max_model_len=1024, dtype=self.dtype),
            scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=512),
            cache_config=SimpleNamespace(block_size=self.block_size, cache_dtype="auto"),
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            compilation_config=SimpleNamespace(static_forward_context={NAME: self.layer}),
        )
        return AnvilMLAMetadataBuilder(spec, [NAME], config, self.device)

    def take_block(self) -> int:
        return next(self._free)


@dataclass
class Step:
    """What a step of a batch gives the layer, on its device."""

    query: torch.Tensor
    latent: torch.Tensor
    rotated: torch.Tensor
    common: CommonAttentionMetadata

    def run(self, layer: Layer, metadata: AnvilMLAMetadata) -> torch.Tensor:
        """[rows, heads, value] of the layer, padding included, whose rows were 7."""
        sizes, mla = layer.sizes, layer.layer
        slots, cache = self.common.slot_mapping, mla.kv_cache
        mla.update_kv_cache(self.latent, self.rotated, cache, slots, metadata, "auto", mla._k_scale)
        output = torch.full(
            (len(self.query), sizes.heads * sizes.value), 7, dtype=layer.hidden, device=layer.device
        )
        mla.forward_impl(self.query, self.latent, self.rotated, cache, metadata, output=output)
        return output.view(-1, sizes.heads, sizes.value)


class Batch:
    """Requests with all their tokens, which steps compute piece by piece."""

    def __init__(self, layer: Layer, lens: Sequence[int], seed: int = 1) -> None:
        self.layer, self.sizes = layer, layer.sizes
        self.generator = torch.Generator().manual_seed(seed)
        sizes = layer.sizes
        self.query = [self._normal(n, sizes.heads, sizes.nope + sizes.rope) for n in lens]
        self.latent = [self._normal(n, sizes.rank) for n in lens]
        self.rotated = [self._normal(n, 1, sizes.rope) for n in lens]
        self.blocks: list[list[int]] = [
            [layer.take_block() for _ in range(-(-n // layer.block_size))] for n in lens
        ]

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.layer.hidden)

    def step(self, pieces: Sequence[tuple[int, int, int]], padding: int = 0) -> Step:
        """`pieces` are (request, first token, token behind the last); `padding` rows, and with them
        a request without any, are put behind."""
        size, device = self.layer.block_size, self.layer.device

        def rows(of: list[torch.Tensor]) -> torch.Tensor:
            parts = [of[r][first:last] for r, first, last in pieces]
            nothing = torch.full((padding, *of[0].shape[1:]), float("nan"), dtype=of[0].dtype)
            return torch.cat([*parts, nothing]).to(device)

        extra = bool(padding)
        lens = [last - first for _, first, last in pieces] + [0] * extra
        seq_lens = torch.tensor([last for _, _, last in pieces] + [0] * extra, dtype=torch.int32)
        starts = torch.tensor(np.cumsum([0, *lens]), dtype=torch.int32)
        table = torch.full((len(lens), 64), 2**31 - 1, dtype=torch.int32)
        slots = []
        for row, (request, first, last) in enumerate(pieces):
            blocks = self.blocks[request]
            table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            slots += [blocks[t // size] * size + t % size for t in range(first, last)]
        slot_mapping = torch.tensor(slots + [-1] * padding)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens.to(device),
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(lens),
            num_actual_tokens=len(slot_mapping),
            max_query_len=max(lens),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=table.to(device),
            slot_mapping=slot_mapping.to(device),
        )
        return Step(rows(self.query), rows(self.latent), rows(self.rotated), common)

    def expected(self, pieces: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """[rows, heads, value] in float64: expanded keys and values, one softmax over all."""
        return torch.cat([self._expected(*piece) for piece in pieces])

    def _expected(self, request: int, first: int, last: int) -> torch.Tensor:
        sizes = self.sizes
        latent = self.latent[request][:last].to(self.layer.dtype).double()
        rotated = self.rotated[request][:last, 0].to(self.layer.dtype).double()
        parts = (latent @ self.layer.weight.double().T).view(last, sizes.heads, -1)
        nope, value = parts.split([sizes.nope, sizes.value], -1)
        query = self.query[request][first:last].double()
        logits = torch.einsum("qhd,khd->hqk", query[..., : sizes.nope], nope)
        logits += torch.einsum("qhd,kd->hqk", query[..., sizes.nope :], rotated)
        distance = torch.arange(first, last)[:, None] - torch.arange(last)
        hidden = distance < 0
        if self.layer.window is not None:
            hidden |= distance >= self.layer.window
        weights = (logits * sizes.scale).masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value)


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The greatest error of a token's head, in the Euclidean norm, relative to what is expected."""
    error = torch.linalg.vector_norm(actual.cpu().double() - expected, dim=-1)
    ratio: Any = error / torch.linalg.vector_norm(expected, dim=-1)
    return float(ratio.max())
