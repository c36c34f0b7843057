# SPDX-License-Identifier: Apache-2.0
"""Which requests of a step attend to latents and which to expanded keys; see `mla_impl`."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder
from vllm.v1.attention.backend import AttentionMetadata, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheSpec

from .metadata import AnvilAttentionMetadata, AnvilAttentionMetadataBuilder


def least_query_worth_expanding(
    kv_lora_rank: int, qk_nope_head_dim: int, v_head_dim: int
) -> int | None:
    """The least query tokens of a request for which expanding its latents costs less than attending
    to them, however many latents that are; None where it never does.

    For each head, expanding a latent takes `kv_lora_rank * (qk_nope_head_dim + v_head_dim)`
    multiplications, once for all query tokens; and a key and value then have
    `2 * kv_lora_rank - qk_nope_head_dim - v_head_dim` elements less, for each query token.
    """
    expanded = qk_nope_head_dim + v_head_dim
    saved = 2 * kv_lora_rank - expanded
    return None if saved <= 0 else -(-kv_lora_rank * expanded // saved)


@dataclass
class ExpandedRequest:
    """A request that attends to keys and values made of all its latents.

    Attributes:
        rows: its query rows, counted from the first that are expanded.
        blocks: [num_blocks] int32, on the device: its blocks of the cache, in order.
        batch: the request over a cache of these blocks alone.
    """

    rows: slice
    blocks: torch.Tensor
    batch: AnvilAttentionMetadata


@dataclass
class AnvilMLAMetadata(AttentionMetadata):
    """One step's batch. The engine's layer gives the first `num_decode_tokens` query rows to
    `forward_mqa`, and the others to `forward_mha`.

    Attributes:
        decode: the requests that attend to latents: those with few query tokens. None where there
            are none.
        expanded: the others, with rows.
        expanded_bytes: how much memory their keys and values may take at a time.
    """

    num_actual_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    max_query_len: int
    max_seq_len: int
    decode: AnvilAttentionMetadata | None
    expanded: list[ExpandedRequest] = field(default_factory=list)
    expanded_bytes: int = 0


class AnvilMLAMetadataBuilder(AnvilAttentionMetadataBuilder):
    """Builds `AnvilMLAMetadata` once per step and KV cache group."""

    # Metadata of expanded requests holds parts of the block table.
    supports_update_block_table: bool = False
    # So does that of requests that attend to latents hold what was read on the host.
    supports_draft_decode_metadata_update: bool = False

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        for name in layer_names:
            layers[name].impl.layer_name = name
        layer = layers[layer_names[0]]
        least = least_query_worth_expanding(
            layer.kv_lora_rank, layer.qk_nope_head_dim, layer.v_head_dim
        )
        # The engine puts requests with no more query tokens than this first.
        self.reorder_batch_threshold = None if least is None else least - 1
        # The engine's profiling run sets this aside for expanded keys and values.
        rows = MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size(vllm_config)
        head = (layer.qk_nope_head_dim + layer.v_head_dim) * kv_cache_spec.dtype.itemsize
        self._expanded_bytes = rows * layer.num_heads * head

    def _admit(self, layer: Any) -> None:
        layer.impl.admit(self.vllm_config, self.kv_cache_spec.block_size)

    def build(  # type: ignore[override]  # the engine asks no more of metadata than its layer reads
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AnvilMLAMetadata:
        """The metadata of one step."""
        whole = super().build(common_prefix_len, common_attn_metadata, fast_build)
        return self._split(whole, self.reorder_batch_threshold)

    def build_for_cudagraph_capture(  # type: ignore[override]  # likewise
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> AnvilMLAMetadata:
        """All requests attend to latents: a graph is replayed for requests of other lengths, and
        blocks to be expanded are counted on the host."""
        return self._split(super().build(0, common_attn_metadata), None)

    def _split(self, whole: AnvilAttentionMetadata, threshold: int | None) -> AnvilMLAMetadata:
        lens = [end - start for start, end in pairwise(whole.query_start_loc_host)]
        first = len(lens)
        if threshold is not None and whole.causal is True:
            first = next((r for r, length in enumerate(lens) if length > threshold), first)
        decode: AnvilAttentionMetadata | None = whole
        expanded: list[ExpandedRequest] = []
        decode_tokens = whole.num_actual_tokens
        if first < len(lens):
            decode_tokens = whole.query_start_loc_host[first]
            decode = _first_requests(whole, first) if first > 0 else None
            expanded = self._expanded(whole, first)
        return AnvilMLAMetadata(
            num_actual_tokens=whole.num_actual_tokens,
            num_decodes=first,
            num_decode_tokens=decode_tokens,
            num_prefills=len(lens) - first,
            max_query_len=whole.max_query_len,
            max_seq_len=whole.max_seq_len,
            decode=decode,
            expanded=expanded,
            expanded_bytes=self._expanded_bytes,
        )

    def _expanded(self, whole: AnvilAttentionMetadata, first: int) -> list[ExpandedRequest]:
        block_size = self.kv_cache_spec.block_size
        starts, lens = whole.query_start_loc_host, whole.seq_lens_host
        chosen = [r for r in range(first, len(lens)) if starts[r + 1] > starts[r]]
        blocks = [-(-lens[r] // block_size) for r in chosen]
        device = whole.block_table.device
        following = torch.arange(max(blocks, default=0), dtype=torch.int32, device=device)
        ends = torch.tensor([[0, starts[r + 1] - starts[r]] for r in chosen], dtype=torch.int32)
        ends_on_device = ends.to(device)
        return [
            ExpandedRequest(
                rows=slice(starts[r] - starts[first], starts[r + 1] - starts[first]),
                blocks=whole.block_table[r, :count],
                batch=replace(
                    whole,
                    num_actual_tokens=starts[r + 1] - starts[r],
                    max_query_len=starts[r + 1] - starts[r],
                    max_seq_len=lens[r],
                    query_start_loc=ends_on_device[index],
                    seq_lens=whole.seq_lens[r : r + 1],
                    block_table=following[None, :count],
                    query_start_loc_cpu=ends[index],
                    seq_lens_cpu=torch.tensor(lens[r : r + 1]),
                    _plans={},
                    # This table is right by construction.
                    _checked={(count, block_size, False)},
                ),
            )
            for index, (r, count) in enumerate(zip(chosen, blocks, strict=True))
        ]


def _first_requests(whole: AnvilAttentionMetadata, count: int) -> AnvilAttentionMetadata:
    starts = whole.query_start_loc_host[: count + 1]
    lens = whole.seq_lens_host[:count]
    return replace(
        whole,
        num_actual_tokens=starts[-1],
        max_query_len=max(end - start for start, end in pairwise(starts)),
        max_seq_len=max(lens),
        query_start_loc=whole.query_start_loc[: count + 1],
        seq_lens=whole.seq_lens[:count],
        block_table=whole.block_table[:count],
        query_start_loc_cpu=whole.query_start_loc_cpu[: count + 1],
        seq_lens_cpu=torch.tensor(lens),
        _plans={},
        _checked=set(),
    )
