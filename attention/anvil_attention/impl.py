# SPDX-License-Identifier: Apache-2.0
"""One attention layer: writes new keys and values into the cache and computes the output."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl, AttentionLayer, AttentionType
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from vllm_anvil.ops.cache import write_kv_cache

from .metadata import AnvilAttentionMetadata, LayerGeometry
from .reference import paged_attention

_ENCODER_TYPES = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


def split_kv_cache(kv_cache: torch.Tensor, head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value views of a layer's cache as the runner allocates it.

    Args:
        kv_cache: [num_blocks, num_kv_heads, block_size, head_size + value_head_size], with the
            strides of whichever `KVCacheLayout` was resolved.
        head_size: elements of a key.

    Returns:
        Views [num_blocks, block_size, num_kv_heads, head_size] and
        [num_blocks, block_size, num_kv_heads, value_head_size] of the same memory.
    """
    by_token = kv_cache.transpose(1, 2)
    return by_token[..., :head_size], by_token[..., head_size:]


class AnvilAttentionImpl(AttentionImpl[AnvilAttentionMetadata]):
    """Attention of one layer, for decoders, encoders and cross-attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            sinks: [num_heads], a weight of the model that is loaded later; kept, not copied.
            options: what a model asks of a backend beyond the engine's interface. None is
                implemented.

        Raises:
            NotImplementedError: an option or a KV cache dtype that is not implemented.
            ValueError: sinks that are not one per head.
        """
        if options:
            names = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise NotImplementedError(
                f"ANVIL_ATTN does not implement {names}: choose a model that does without"
            )
        if is_quantized_kv_cache(kv_cache_dtype):
            raise NotImplementedError(
                f"ANVIL_ATTN does not implement kv_cache_dtype={kv_cache_dtype!r}: "
                "run with --kv-cache-dtype auto"
            )
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"sinks must be [{num_heads}] (one per head), got {sinks.shape}")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        # 0 is the engine's other way of saying "no cap".
        self.logits_soft_cap = logits_soft_cap or None
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes the step's keys and values into the layer's cache.

        Args:
            key: [num_tokens, num_kv_heads, head_size]
            value: [num_tokens, num_kv_heads, value_head_size]
            kv_cache: as in `split_kv_cache`, written in place
            slot_mapping: [num_slots <= num_tokens] int64; negative slots are padding
        """
        if self.attn_type in _ENCODER_TYPES:
            return
        key_cache, value_cache = split_kv_cache(kv_cache, self.head_size)
        num_tokens = slot_mapping.shape[0]
        write_kv_cache(
            key[:num_tokens].to(key_cache.dtype),
            value[:num_tokens].to(value_cache.dtype),
            key_cache,
            value_cache,
            slot_mapping,
        )

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: AnvilAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the layer's output in place.

        Args:
            query: [num_tokens, num_heads, head_size]
            key: [num_tokens, num_kv_heads, head_size], read by encoders only: decoders find
                theirs in the cache
            value: [num_tokens, num_kv_heads, value_head_size], likewise
            kv_cache: as in `split_kv_cache`; not read by encoders
            attn_metadata: None in a profiling run, which computes nothing
            output: [num_tokens, num_heads, value_head_size], returned; padding rows are kept

        Raises:
            NotImplementedError: an output scale is given (fused output quantisation).
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "ANVIL_ATTN does not implement output_scale (fused output quantisation): "
                "disable the attention fusion pass"
            )
        if attn_metadata is None:
            return output.zero_()

        block_size = None
        if self.attn_type in _ENCODER_TYPES:
            assert key is not None
            assert value is not None
            key_cache, value_cache = key.unsqueeze(1), value.unsqueeze(1)
        else:
            key_cache, value_cache = split_kv_cache(kv_cache, self.head_size)
            block_size = key_cache.shape[1]
        geometry = LayerGeometry(
            self.num_heads,
            self.num_kv_heads,
            max(key_cache.shape[3], value_cache.shape[3]),
            self.sliding_window,
            block_size,
        )
        slopes = self.alibi_slopes
        paged_attention(
            query,
            key_cache,
            value_cache,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            self.scale,
            output,
            logits_soft_cap=self.logits_soft_cap,
            alibi_slopes=None if slopes is None else slopes.to(query.device),
            sinks=self.sinks,
            sliding_window=self.sliding_window,
            plan=attn_metadata.plan(geometry),
        )
        return output
