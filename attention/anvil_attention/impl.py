# SPDX-License-Identifier: Apache-2.0
"""One attention layer: writes new keys and values into the cache and computes the output."""

from dataclasses import replace
from typing import Any

import torch
from vllm import envs
from vllm.config import ModelConfig, VllmConfig, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionImpl, AttentionLayer, AttentionType
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from vllm_anvil.ops.cache import write_kv_cache

from .contract import AttentionCall, AttentionSpec
from .fused_update import FusedCacheUpdate
from .layer_cache import (
    FLOAT8_CACHES,
    NO_SCALES,
    Scales,
    cache_dtype,
    query_dtypes,
    split_kv_cache,
)
from .metadata import AnvilAttentionMetadata, LayerGeometry
from .observers import observer
from .reference import paged_attention
from .serving import served

_ENCODER_TYPES = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class AnvilAttentionImpl(FusedCacheUpdate, AttentionImpl[AnvilAttentionMetadata]):
    """Attention of one layer, for decoders, encoders and cross-attention.

    It is computed by the implementation that is served. Encoders have no cache: the step's own keys
    are one of blocks of one token, which the contract allows and not every implementation takes;
    where it refuses, the reference computes them.
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
        value_head_size: int | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            value_head_size: where it is known and another one than that of keys.
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
        if is_quantized_kv_cache(kv_cache_dtype) and kv_cache_dtype not in FLOAT8_CACHES:
            raise NotImplementedError(
                f"ANVIL_ATTN does not implement kv_cache_dtype={kv_cache_dtype!r}: run with "
                f"--kv-cache-dtype auto, or {', '.join(FLOAT8_CACHES)}"
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
        self._model_dtype: torch.dtype | None = None
        config = get_current_vllm_config_or_none()
        self._causal = attn_type == AttentionType.DECODER and not (
            config is not None and config.attention_config.use_non_causal
        )
        self._batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        # Of calls, and of calls to an implementation that takes the model's dtype only.
        self._spec: AttentionSpec | None = None
        self._rounded: AttentionSpec | None = None
        self._by_reference = self._served.is_reference
        if config is not None and config.model_config is not None:
            self._model_dtype = config.model_config.dtype
            # The engine does not tell the size of a value, and that of a block may yet change:
            # the metadata builder admits the layer again, once both are known.
            self.admit(config, value_head_size or head_size, config.cache_config.block_size)

    @property
    def has_cache(self) -> bool:
        return self.attn_type not in _ENCODER_TYPES

    def admit(self, config: VllmConfig, value_head_size: int, block_size: int) -> None:
        """Lets the attention that is served refuse the layer, before anything is computed.

        Raises:
            ValueError: it refuses, or computes something else than the reference.
        """
        if self._served.is_reference:
            return
        device_type = current_platform.device_type
        specs = [
            self.spec(value_head_size, block_size if self.has_cache else 1, *dtypes, device_type)
            for dtypes in self.dtypes(config.model_config)
        ]
        if (
            not self.has_cache
            and not self._batch_invariant
            and all(map(self._served.refusal, specs))
        ):
            return
        scheduler = config.scheduler_config
        self._served.admit(
            specs,
            torch.device(device_type, torch.accelerator.current_device_index()),
            scheduler.max_num_batched_tokens,
            scheduler.max_num_seqs,
        )

    def dtypes(self, model: ModelConfig) -> list[tuple[torch.dtype, torch.dtype]]:
        """What dtypes query and cache may have in calls of the layer."""
        dtypes = query_dtypes(model.dtype)
        if not self.has_cache:
            return [(dtype, dtype) for dtype in dtypes]
        kv_dtype = cache_dtype(self.kv_cache_dtype, model)
        return [(dtype, kv_dtype) for dtype in dtypes]

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
            causal=self._causal,
            batch_invariant=self._batch_invariant,
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
            layer: its `_k_scale_float` and `_v_scale_float` are what numbers in the cache are
                multiplied by when they are read: here they are divided by them.
            key: [num_tokens, num_kv_heads, head_size]
            value: [num_tokens, num_kv_heads, value_head_size]
            kv_cache: as in `split_kv_cache`, written in place
            slot_mapping: [num_slots <= num_tokens] int64; negative slots are padding
        """
        if not self.has_cache:
            return
        key_cache, value_cache = split_kv_cache(kv_cache, self.head_size, self.kv_cache_dtype)
        write_kv_cache(key, value, key_cache, value_cache, slot_mapping, *Scales.of(layer))

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
        metadata, scales = attn_metadata, NO_SCALES
        if self.has_cache:
            caches = split_kv_cache(kv_cache, self.head_size, self.kv_cache_dtype)
            scales = Scales.of(layer)
        else:
            assert key is not None
            assert value is not None
            metadata = metadata.over_own_keys
            caches = key.unsqueeze(1), value.unsqueeze(1)
        name = getattr(layer, "layer_name", "")
        self.attend(name, query, *caches, metadata, output, scales)
        return output

    def attend(
        self,
        name: str,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AnvilAttentionMetadata,
        output: torch.Tensor,
        scales: Scales = NO_SCALES,
    ) -> None:
        """Writes the output of the layer of this name, by what is served.

        Args and raises: as in `forward`, with the caches as in `contract.AttentionCall`.
        """
        if self.has_cache and not self._served.implementation.checks_blocks:
            num_blocks, block_size = key_cache.shape[:2]
            wait = self._served.reads_blindly
            metadata.check_block_table(num_blocks, block_size, wait=wait)
        if self._spec is None:
            self._settle(query, key_cache, value_cache)
        watch = observer()
        if self._by_reference and watch is None:
            self._compute_reference(query, key_cache, value_cache, metadata, output, scales)
            return
        call = self._call(query, key_cache, value_cache, metadata, output, scales)
        written = None if watch is None else watch(name, call)
        if self._by_reference:
            self._compute_reference(query, key_cache, value_cache, metadata, output, scales)
        elif self._rounded is None:
            self._served.compute(call, name)
        else:
            self._compute_rounded(call, self._rounded, metadata.query_start_loc_host[-1], name)
        if written is not None:
            written()

    def _settle(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> None:
        """What all calls of the layer have in common, and who computes them: its cache stays as it
        is once it has been allocated."""
        self._spec = spec = self.spec(
            value_cache.shape[3],
            key_cache.shape[1],
            query.dtype,
            key_cache.dtype,
            query.device.type,
        )
        if self._by_reference or self._served.refusal(spec) is None:
            return
        rounded = replace(spec, dtype=self._model_dtype or spec.kv_dtype)
        if self.has_cache or self._served.refusal(rounded) is None:
            # The other dtype that was admitted.
            self._rounded = rounded
        else:
            self._by_reference = True

    def _call(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AnvilAttentionMetadata,
        output: torch.Tensor,
        scales: Scales,
    ) -> AttentionCall:
        assert self._spec is not None
        workspace = None
        if not self._by_reference:
            tokens, requests = query.shape[0], metadata.seq_lens.shape[0]
            spec = self._rounded or self._spec
            workspace = self._served.workspace(spec, query.device, tokens, requests)
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
            workspace=workspace,
            k_scale=scales.k_scale,
            v_scale=scales.v_scale,
        )

    def _compute_rounded(
        self, call: AttentionCall, spec: AttentionSpec, num_rows: int, layer: str
    ) -> None:
        """The call with query and output rounded to what the implementation takes."""
        rounded = replace(
            call,
            spec=spec,
            query=call.query.to(spec.dtype),
            output=torch.empty_like(call.output, dtype=spec.dtype),
        )
        self._served.compute(rounded, layer)
        call.output[:num_rows] = rounded.output[:num_rows]

    def _compute_reference(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AnvilAttentionMetadata,
        output: torch.Tensor,
        scales: Scales,
    ) -> None:
        """The reference, with a plan that layers of the same geometry share."""
        geometry = LayerGeometry(
            self.num_heads,
            self.num_kv_heads,
            max(key_cache.shape[3], value_cache.shape[3]),
            self.sliding_window,
            key_cache.shape[1],
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
            k_scale=scales.k_scale,
            v_scale=scales.v_scale,
        )
