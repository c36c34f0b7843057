# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention of one layer.

The cache holds one latent for each token, `kv_lora_rank` elements that keys and values of all heads
are made of by `kv_b_proj`, and behind it `qk_rope_head_dim` elements of the key that carry the
position. There are two ways to attend to it, and both are calls of the attention contract:

- Over latents. The engine's layer multiplies `kv_b_proj` into the query and out of the output
  (`W_UK_T`, `W_UV`), so that a latent is a key, and its first elements are the value, of one KV
  head that all query heads share. A latent is read once for all heads, but each pair of a query
  and a key costs about three times the multiplications.
- Over expanded keys and values. All latents of a request are gathered from the cache and multiplied
  by `kv_b_proj`; they are then keys and values as of any other layer.

Requests with few query tokens attend to latents, others to expanded keys
(`mla_metadata.least_query_worth_expanding`). The engine's own MLA backends expand as well, but the
keys of a step and the cached ones before them apart, the latter in chunks whose results are merged
by their log-sum-exp, so that the memory for them is bounded. The contract returns no log-sum-exp,
and needs none here: a step's latents are in the cache before the attention, so that all keys of a
request are gathered at once, and what bounds the memory is to expand for some of the heads at a
time. With the same keys in one softmax, a prompt also has the same result whether it was computed
as a whole, in chunks, or from a cached prefix, but for the order of sums.
"""

from typing import Any

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import get_and_maybe_dequant_weights
from vllm.v1.attention.backend import AttentionLayer, AttentionType, MLAAttentionImpl
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from vllm_anvil.ops.cache import write_kv_cache
from vllm_anvil.ops.gemm import linear

from .impl import AnvilAttentionImpl
from .layer_cache import query_dtypes
from .mla_metadata import AnvilMLAMetadata, ExpandedRequest


class _ExpandedAttention(AnvilAttentionImpl):
    """Attention over keys and values that are made for the call, in the query's dtype."""

    def dtypes(self, model: ModelConfig) -> list[tuple[torch.dtype, torch.dtype]]:
        return [(dtype, dtype) for dtype in query_dtypes(model.dtype)]


class AnvilMLAImpl(MLAAttentionImpl[AnvilMLAMetadata]):
    """Multi-head latent attention of one layer, by the attention that is served."""

    supports_pcp: bool = False
    layer_name = ""  # set by the metadata builder

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        qk_head_dim: int,
        v_head_dim: int,
        kv_b_proj: Any,
        indexer: object | None = None,
        q_pad_num_heads: int | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            head_size: of the cache: `kv_lora_rank + qk_rope_head_dim`.
            kv_b_proj: the linear layer from a latent to, for each head, `qk_nope_head_dim` elements
                of its key and `v_head_dim` of its value. Its weight is loaded later; kept.
            options: what a model asks of a backend beyond the engine's interface. None is
                implemented.

        Raises:
            NotImplementedError: an option that is not implemented.
            ValueError: the attention that is served refuses the layer, or computes something else
                than the reference.
        """
        asked = {
            "alibi_slopes": alibi_slopes,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            "attn_type": None if attn_type == AttentionType.DECODER else attn_type,
            "indexer": indexer,
            "q_pad_num_heads": q_pad_num_heads,
            **options,
        }
        names = ", ".join(name for name, value in asked.items() if value is not None)
        if names:
            raise NotImplementedError(
                f"ANVIL_MLA does not implement {names}: choose a model that does without"
            )
        if is_quantized_kv_cache(kv_cache_dtype):
            raise NotImplementedError(
                f"ANVIL_MLA does not implement kv_cache_dtype={kv_cache_dtype!r}: "
                "run with --kv-cache-dtype auto"
            )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.qk_head_dim = qk_head_dim
        self.v_head_dim = v_head_dim
        self.kv_b_proj = kv_b_proj
        self.sliding_window = sliding_window
        self.logits_soft_cap = logits_soft_cap
        self._weight: torch.Tensor | None = None
        self._over_latents = AnvilAttentionImpl(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            sliding_window=sliding_window,
            kv_cache_dtype=kv_cache_dtype,
            logits_soft_cap=logits_soft_cap,
            value_head_size=kv_lora_rank,
        )
        # By how many heads are expanded at a time.
        self._over_expanded: dict[int, AnvilAttentionImpl] = {}
        self._expanded(num_heads)

    def admit(self, config: VllmConfig, block_size: int) -> None:
        """Lets the attention that is served refuse the layer, before anything is computed.

        Raises:
            ValueError: it refuses, or computes something else than the reference.
        """
        self._over_latents.admit(config, self.kv_lora_rank, block_size)
        self._expanded(self.num_heads).admit(config, self.v_head_dim, block_size)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Keeps the weight of `kv_b_proj`, which a quantised layer is asked for."""
        self._weight = get_and_maybe_dequant_weights(
            self.kv_b_proj, out_dtype=self.kv_b_proj.params_dtype
        )

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        """Writes the step's latents into the layer's cache.

        Args:
            kv_c_normed: [num_tokens, kv_lora_rank]
            k_pe: [num_tokens, 1, qk_rope_head_dim]
            kv_cache: [num_blocks, block_size, head_size], any strides with the last dimension
                contiguous, written in place
            slot_mapping: [num_slots <= num_tokens] int64; negative slots are padding
            kv_cache_dtype, k_scale: not read: quantised caches are refused
        """
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten()
        latents = kv_cache.unsqueeze(2)
        num_tokens = slots.shape[0]
        write_kv_cache(
            kv_c_normed[:num_tokens].unsqueeze(1).to(kv_cache.dtype),
            k_pe[:num_tokens].to(kv_cache.dtype),
            latents[..., : self.kv_lora_rank],
            latents[..., self.kv_lora_rank :],
            slots,
        )

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: AnvilMLAMetadata,
        layer: AttentionLayer,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention over latents.

        Args:
            q: [num_tokens, num_heads, head_size], or in two parts of `kv_lora_rank` and
                `qk_rope_head_dim` elements
            kv_c_and_k_pe_cache: [num_blocks, block_size, head_size]

        Returns:
            [num_tokens, num_heads, kv_lora_rank], in which rows of padding hold anything; and None.

        Raises: as `AnvilAttentionImpl.forward`.
        """
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        assert attn_metadata.decode is not None
        latents = kv_c_and_k_pe_cache.unsqueeze(2)
        output = query.new_empty(*query.shape[:2], self.kv_lora_rank)
        self._over_latents.attend(
            self.layer_name,
            query,
            latents,
            latents[..., : self.kv_lora_rank],
            attn_metadata.decode,
            output,
        )
        return output, None

    def forward_mha(
        self,
        q: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: AnvilMLAMetadata,
        k_scale: torch.Tensor,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
    ) -> None:
        """Attention over expanded keys and values, all of them from the cache.

        Args:
            q: [num_tokens, num_heads, qk_head_dim]: rows of expanded requests, and padding
            kv_c_normed, k_pe, k_scale: not read: the cache has the step's latents already
            kv_c_and_k_pe_cache: [num_blocks, block_size, head_size]
            output: [num_tokens, num_heads * v_head_dim], written; rows of padding are kept

        Raises:
            NotImplementedError: an output scale is given (fused output quantisation).
            IndexError, RuntimeError: as `AnvilAttentionImpl.forward`.
        """
        if output_scale is not None:
            raise NotImplementedError(
                "ANVIL_MLA does not implement output_scale (fused output quantisation): "
                "disable the attention fusion pass"
            )
        result = output.view(-1, self.num_heads, self.v_head_dim)
        for request in attn_metadata.expanded:
            self._attend_to_expanded(
                request,
                q[request.rows],
                kv_c_and_k_pe_cache,
                result[request.rows],
                attn_metadata.expanded_bytes,
            )

    def _attend_to_expanded(
        self,
        request: ExpandedRequest,
        query: torch.Tensor,
        cache: torch.Tensor,
        output: torch.Tensor,
        most_bytes: int,
    ) -> None:
        # Whole blocks: what the last one holds beyond the request's length is expanded and not
        # looked at, and the block size stays the cache's.
        latents = cache.index_select(0, request.blocks)
        product = 4 * (self.qk_nope_head_dim + self.v_head_dim)
        head = product + query.dtype.itemsize * (self.qk_head_dim + self.v_head_dim)
        at_a_time = max(1, most_bytes // (head * latents.shape[0] * latents.shape[1]))
        for first in range(0, self.num_heads, at_a_time):
            heads = slice(first, min(first + at_a_time, self.num_heads))
            key, value = self._expand(latents, heads, query.dtype)
            self._expanded(heads.stop - heads.start).attend(
                self.layer_name, query[:, heads], key, value, request.batch, output[:, heads]
            )

    def _expand(
        self, latents: torch.Tensor, heads: slice, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some heads, as caches of the contract in this dtype.

        latents: [num_blocks, block_size, head_size]
        """
        assert self._weight is not None
        num_heads, width = heads.stop - heads.start, self.qk_nope_head_dim + self.v_head_dim
        weight = self._weight[heads.start * width : heads.stop * width]
        latent, rotated = latents.split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        if weight.dtype.itemsize == 2:
            expanded = linear(latent, weight)
        else:
            expanded = torch.nn.functional.linear(latent.to(weight.dtype), weight)
        expanded = expanded.view(*latents.shape[:2], num_heads, width)
        # As in the engine's caches, a value lies behind its key: implementations may rely on the
        # same strides for both.
        sizes = [self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim]
        cache = expanded.new_empty(*expanded.shape[:3], sum(sizes), dtype=dtype)
        nope, rope, value = cache.split(sizes, dim=-1)
        nope.copy_(expanded[..., : self.qk_nope_head_dim])
        rope.copy_(rotated.unsqueeze(2))
        value.copy_(expanded[..., self.qk_nope_head_dim :])
        return cache[..., : self.qk_head_dim], value

    def _expanded(self, num_heads: int) -> AnvilAttentionImpl:
        if num_heads not in self._over_expanded:
            self._over_expanded[num_heads] = _ExpandedAttention(
                num_heads,
                self.qk_head_dim,
                self.scale,
                num_heads,
                sliding_window=self.sliding_window,
                logits_soft_cap=self.logits_soft_cap,
                value_head_size=self.v_head_dim,
            )
        return self._over_expanded[num_heads]
