# SPDX-License-Identifier: Apache-2.0
"""The update of a layer's cache together with what comes before it: norms and rotary embedding.

The engine's fusion passes ask for these methods, and call them; `plugin/seams/attention_steps.py`
does so where a model runs without such passes.
"""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionLayer
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from vllm_anvil.ops.rotary import qk_norm_rotary_write_kv_cache

from .layer_cache import split_kv_cache


class FusedCacheUpdate:
    """Of an attention layer's implementation, which has these attributes."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    kv_cache_dtype: str

    @property
    def has_cache(self) -> bool:
        raise NotImplementedError

    def fused_rope_kvcache_supported(self) -> bool:
        return self.has_cache and not is_quantized_kv_cache(self.kv_cache_dtype)

    def fused_qk_norm_rope_kvcache_supported(self) -> bool:
        return self.fused_rope_kvcache_supported()

    def fused_qk_norm_mrope_kvcache_supported(self) -> bool:
        return self.fused_rope_kvcache_supported()

    def fused_kv_cache_update(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        **options: Any,
    ) -> None:
        """Norms heads, turns queries and keys in place, and writes the step's keys and values, by
        one op: bit for bit what these do one after the other.

        Args:
            query: [num_tokens, num_heads * head_size], or the heads as a dimension of their own;
                likewise key and value. Written to, as is key.
            kv_cache: as in `split_kv_cache`, written in place
            slot_mapping: [num_slots <= num_tokens] int64; negative slots are padding
            options: the norms' and the three positions' arguments of
                `vllm_anvil.ops.rotary.qk_norm_rotary_write_kv_cache`
        """
        key_cache, value_cache = split_kv_cache(kv_cache, self.head_size, self.kv_cache_dtype)
        qk_norm_rotary_write_kv_cache(
            positions,
            query,
            key,
            value,
            key_cache,
            value_cache,
            slot_mapping,
            cos_sin_cache,
            is_neox,
            **options,
        )

    def do_rope_and_kv_cache_update(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
    ) -> None:
        """`fused_kv_cache_update` as the engine's RopeKVCacheFusionPass calls it."""
        self.fused_kv_cache_update(
            query, key, value, positions, cos_sin_cache, is_neox, kv_cache, layer_slot_mapping
        )

    def do_qk_norm_rope_kvcache_update(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        q_out: torch.Tensor,
        k_out: torch.Tensor,
        positions: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        rms_norm_eps: float,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
        **options: Any,
    ) -> None:
        """The same as the engine's QkNormRopeKvCachePattern calls it, with queries and keys of a
        fused projection `qkv`, which stays as it is, and results in `q_out` and `k_out`
        [num_tokens, heads, head_size]."""
        sizes = [n * self.head_size for n in (self.num_heads, self.num_kv_heads)]
        query, key, value = qkv.split([*sizes, qkv.shape[1] - sum(sizes)], dim=-1)
        q_out.copy_(query.view(q_out.shape))
        k_out.copy_(key.view(k_out.shape))
        self.fused_kv_cache_update(
            q_out,
            k_out,
            value,
            positions,
            cos_sin_cache,
            is_neox,
            kv_cache,
            layer_slot_mapping,
            query_weight=q_weight,
            key_weight=k_weight,
            epsilon=rms_norm_eps,
            **options,
        )

    def do_qk_norm_mrope_kvcache_update(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        q_out: torch.Tensor,
        positions: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        rms_norm_eps: float,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        mrope_section: tuple[int, int, int],
        is_interleaved: bool,
        rotary_dim: int,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
    ) -> None:
        """The same with three positions a token, and keys in the cache alone."""
        k_out = qkv.new_empty(len(qkv), self.num_kv_heads, self.head_size)
        self.do_qk_norm_rope_kvcache_update(
            layer,
            qkv,
            q_out,
            k_out,
            positions,
            q_weight,
            k_weight,
            rms_norm_eps,
            cos_sin_cache,
            is_neox,
            kv_cache,
            layer_slot_mapping,
            mrope_section=mrope_section,
            mrope_interleaved=is_interleaved,
        )
