# SPDX-License-Identifier: Apache-2.0
"""One attention layer: writes new keys and values into the cache and computes the output."""

from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.attention.backend import AttentionImpl, AttentionLayer, AttentionType
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from vllm_anvil.ops.cache import write_kv_cache

from .contract import AttentionCall, AttentionSpec
from .metadata import AnvilAttentionMetadata, LayerGeometry
from .observers import observer
from .reference import paged_attention
from .serving import served

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


def query_dtypes(model_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """What dtypes the queries of a model may have: a platform may compute between weights in
    another one than theirs, which it decides when they are loaded."""
    dtypes = getattr(current_platform, "hidden_state_dtypes", None)
    return (model_dtype,) if dtypes is None else dtypes(model_dtype)


class AnvilAttentionImpl(AttentionImpl[AnvilAttentionMetadata]):
    """Attention of one layer, for decoders, encoders and cross-attention.

    Layers with a cache are computed by the implementation that is served. Encoders have none and
    are computed by the reference whatever is served: their keys would be a cache of blocks of one
    token, a geometry that the contract allows and that no kernel for serving is written for.
    """

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
            ValueError: sinks that are not one per head; or the attention that is served refuses
                the layer, or computes something else than the reference.
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
        self._served = served()
        # Of calls, and of calls to an implementation that takes the cache's dtype only.
        self._spec: AttentionSpec | None = None
        self._rounded: AttentionSpec | None = None
        config = get_current_vllm_config_or_none()
        if config is not None and config.model_config is not None:
            # The size of a value is not among the arguments, and that of a block may yet change:
            # the metadata builder admits the layer again, once both are known.
            self.admit(config, head_size, config.cache_config.block_size)

    @property
    def has_cache(self) -> bool:
        return self.attn_type not in _ENCODER_TYPES

    def admit(self, config: VllmConfig, value_head_size: int, block_size: int) -> None:
        """Lets the attention that is served refuse the layer, before anything is computed.

        Raises:
            ValueError: it refuses, or computes something else than the reference.
        """
        if self._served.is_reference or not self.has_cache:
            return
        device_type = current_platform.device_type
        kv_dtype = kv_cache_dtype_str_to_dtype(self.kv_cache_dtype, config.model_config)
        scheduler = config.scheduler_config
        self._served.admit(
            [
                self.spec(value_head_size, block_size, dtype, kv_dtype, device_type)
                for dtype in query_dtypes(config.model_config.dtype)
            ],
            torch.device(device_type, torch.accelerator.current_device_index()),
            scheduler.max_num_batched_tokens,
            scheduler.max_num_seqs,
        )

    def spec(
        self,
        value_head_size: int,
        block_size: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device_type: str,
    ) -> AttentionSpec:
        """The layer in the contract's words."""
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            value_head_size=value_head_size,
            block_size=block_size,
            dtype=dtype,
            kv_dtype=kv_dtype,
            scale=self.scale,
            sliding_window=self.sliding_window,
            logits_soft_cap=self.logits_soft_cap,
            has_alibi=self.alibi_slopes is not None,
            has_sinks=self.sinks is not None,
            device=device_type,
        )

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
        if not self.has_cache:
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
            IndexError: the step's block table names a block outside the cache.
            RuntimeError: the attention that is served failed; the cause is its own exception.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "ANVIL_ATTN does not implement output_scale (fused output quantisation): "
                "disable the attention fusion pass"
            )
        if attn_metadata is None:
            return output.zero_()
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        if not self.has_cache:
            assert key is not None
            assert value is not None
            caches = key.unsqueeze(1), value.unsqueeze(1)
            self._compute_reference(query, *caches, attn_metadata, output, block_size=None)
            return output

        key_cache, value_cache = split_kv_cache(kv_cache, self.head_size)
        num_blocks, block_size = key_cache.shape[:2]
        is_reference = self._served.is_reference
        attn_metadata.check_block_table(num_blocks, block_size, read_blindly=not is_reference)
        watch = observer()
        if is_reference and watch is None:
            self._compute_reference(
                query, key_cache, value_cache, attn_metadata, output, block_size=block_size
            )
            return output
        call = self._call(query, key_cache, value_cache, attn_metadata, output)
        name = getattr(layer, "layer_name", "")
        written = None if watch is None else watch(name, call)
        if is_reference:
            self._compute_reference(
                query, key_cache, value_cache, attn_metadata, output, block_size=block_size
            )
        else:
            self._compute_served(call, attn_metadata.query_start_loc_host[-1], name)
        if written is not None:
            written()
        return output

    def _call(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AnvilAttentionMetadata,
        output: torch.Tensor,
    ) -> AttentionCall:
        if self._spec is None:
            # The cache of a layer stays as it is once it has been allocated.
            self._spec = self.spec(
                value_cache.shape[3],
                key_cache.shape[1],
                query.dtype,
                key_cache.dtype,
                query.device.type,
            )
            if self._served.refusal(self._spec) is not None:
                # The other dtype that was admitted.
                self._rounded = replace(self._spec, dtype=key_cache.dtype)
        return AttentionCall(
            spec=self._spec,
            query=query,
            key_cache=key_cache,
            value_cache=value_cache,
            block_table=metadata.block_table,
            query_start_loc=metadata.query_start_loc,
            seq_lens=metadata.seq_lens,
            output=output,
            max_query_len=metadata.max_query_len,
            max_seq_len=metadata.max_seq_len,
            causal=metadata.causal,
            alibi_slopes=self.alibi_slopes,
            sinks=self.sinks,
        )

    def _compute_served(self, call: AttentionCall, num_rows: int, layer: str) -> None:
        if self._rounded is None:
            call = replace(call, workspace=self._served.workspace(call))
            self._served.compute(call, layer)
            return
        dtype = self._rounded.dtype
        rounded = replace(
            call,
            spec=self._rounded,
            query=call.query.to(dtype),
            output=torch.empty_like(call.output, dtype=dtype),
        )
        self._served.compute(replace(rounded, workspace=self._served.workspace(rounded)), layer)
        call.output[:num_rows] = rounded.output[:num_rows]

    def _compute_reference(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AnvilAttentionMetadata,
        output: torch.Tensor,
        *,
        block_size: int | None,
    ) -> None:
        """The reference, with a plan that layers of the same geometry share."""
        geometry = LayerGeometry(
            self.num_heads,
            self.num_kv_heads,
            max(key_cache.shape[3], value_cache.shape[3]),
            self.sliding_window,
            block_size,
        )
        paged_attention(
            query,
            key_cache,
            value_cache,
            metadata.block_table,
            metadata.query_start_loc,
            metadata.seq_lens,
            self.scale,
            output,
            logits_soft_cap=self.logits_soft_cap,
            alibi_slopes=self.alibi_slopes,
            sinks=self.sinks,
            sliding_window=self.sliding_window,
            plan=metadata.plan(geometry),
        )
