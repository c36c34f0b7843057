# SPDX-License-Identifier: Apache-2.0
"""Steps of a layer as the engine drives it, and what attention over whole sequences gives."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec

from anvil_attention.impl import AnvilAttentionImpl
from anvil_attention.metadata import AnvilAttentionMetadataBuilder

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS = 6, 2, 16, 4, 40
SCALE = HEAD_SIZE**-0.5
SPEC = {
    "block_size": BLOCK_SIZE,
    "num_kv_heads": KV_HEADS,
    "head_size": HEAD_SIZE,
    "dtype": torch.float32,
}
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def causal(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


def everything(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (key >= 0) & (query == query)


def dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the last len(query) of len(key) tokens, in float64; [tokens, heads, size]."""
    query, key, value = (t.double().transpose(0, 1) for t in (query, key, value))
    key, value = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (key, value))
    positions = torch.arange(key.shape[1])
    offset = key.shape[1] - query.shape[1]
    visible = mask(torch.arange(query.shape[1])[:, None] + offset, positions[None, :])
    logits = (query @ key.transpose(1, 2) * SCALE).masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.double().view(-1, 1, 1).expand(-1, query.shape[1], 1)
        return (torch.cat([logits, column], -1).softmax(-1)[..., :-1] @ value).transpose(0, 1)
    return (logits.softmax(-1) @ value).transpose(0, 1)


def common_metadata(
    lens: list[tuple[int, int]],
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    device: torch.device,
    padded_reqs: int = 0,
    padded_tokens: int = 0,
    **changes: object,
) -> CommonAttentionMetadata:
    """As the engine's runner makes it for requests of (query_len, seq_len)."""
    lens = lens + [(0, 0)] * padded_reqs
    starts = torch.tensor(np.cumsum([0] + [q for q, _ in lens]), dtype=torch.int32)
    seq_lens = torch.tensor([s for _, s in lens], dtype=torch.int32)
    block_table = torch.nn.functional.pad(block_table, (0, 0, 0, padded_reqs))
    slot_mapping = torch.nn.functional.pad(slot_mapping, (0, padded_tokens), value=-1)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(device),
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=len(lens),
        num_actual_tokens=len(slot_mapping),
        max_query_len=max(q for q, _ in lens),
        max_seq_len=max(s for _, s in lens),
        block_table_tensor=block_table.to(device),
        slot_mapping=slot_mapping.to(device),
        **changes,
    )


def builder(
    device: torch.device,
    cls: type[AnvilAttentionMetadataBuilder] = AnvilAttentionMetadataBuilder,
    spec: type[FullAttentionSpec | CrossAttentionSpec] = FullAttentionSpec,
    speculative: object = None,
) -> AnvilAttentionMetadataBuilder:
    # Without layers: their admission is another test's matter.
    config = SimpleNamespace(
        speculative_config=speculative,
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    return cls(spec(**SPEC), [], config, device)


def layer(**changes: object) -> AnvilAttentionImpl:
    return AnvilAttentionImpl(HEADS, HEAD_SIZE, SCALE, KV_HEADS, **changes)


class Sequences:
    """Requests with all their tokens, and the block tables that they fill step by step."""

    def __init__(self, lens: list[int], device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(length: int, heads: int) -> torch.Tensor:
            return torch.randn(length, heads, HEAD_SIZE, generator=generator).to(dtype)

        self.device = device
        self.query = [normal(length, HEADS) for length in lens]
        self.key = [normal(length, KV_HEADS) for length in lens]
        self.value = [normal(length, KV_HEADS) for length in lens]
        free = iter((torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist())
        self.block_table = torch.full((len(lens), NUM_BLOCKS), 2**31 - 1, dtype=torch.int32)
        for request, length in enumerate(lens):
            for index in range(-(-length // BLOCK_SIZE)):
                self.block_table[request, index] = next(free)
        # As the engine allocates it in the layout LBHNC.
        shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
        self.cache = torch.full(shape, float("nan"), dtype=dtype, device=device)

    def slots(self, request: int, tokens: range) -> list[int]:
        table = self.block_table[request]
        return [int(table[t // BLOCK_SIZE]) * BLOCK_SIZE + t % BLOCK_SIZE for t in tokens]


def vars_of(sequences: Sequences) -> tuple[list[torch.Tensor], ...]:
    return sequences.query, sequences.key, sequences.value


def small_batch(device: torch.device, **changes: object) -> CommonAttentionMetadata:
    lens = [(2, 6), (1, 4)]
    table = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    return common_metadata(lens, table, torch.tensor([8, 9, 15]), device).replace(**changes)
