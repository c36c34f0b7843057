# SPDX-License-Identifier: Apache-2.0
"""vLLM's description of this attention: what it supports, and what it refuses and why."""

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm import envs
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionType, MultipleOf

from .contract import AttentionSpec
from .impl import AnvilAttentionImpl
from .layer_cache import cache_dtype, query_dtypes
from .metadata import AnvilAttentionMetadataBuilder
from .observers import Observer, set_observer
from .serving import served

if TYPE_CHECKING:
    from vllm.config.cache import CacheDType
    from vllm.v1.kv_cache_interface import KVCacheSpec


class AnvilAttentionBackend(AttentionBackend):
    """Paged attention on anvil devices, over a cache of any layout that the engine resolves."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]
    supported_kv_cache_dtypes: ClassVar[list["CacheDType"]] = [
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
    ]
    # The engine writes the cache by `do_kv_cache_update` before it asks for the output.
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        # A layer looks its backend up in AttentionBackendEnum by this name: the platform has
        # registered it there.
        return "ANVIL_ATTN"

    @staticmethod
    def get_impl_cls() -> type[AnvilAttentionImpl]:
        return AnvilAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[AnvilAttentionMetadataBuilder]:
        return AnvilAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: "KVCacheSpec | None" = None,
    ) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        # Empty is the engine's word for "every size".
        return []

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (
            AttentionType.DECODER,
            AttentionType.ENCODER,
            AttentionType.ENCODER_ONLY,
            AttentionType.ENCODER_DECODER,
        )

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        # Connectors copy cache blocks by means of the device they were written for.
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        # The reference is not: padding to other requests' lengths changes sums.
        return served().implementation.batch_invariant

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        # The reference plans its tiles from the host's lengths. Others are given the device's, and
        # nothing but bounds from the host.
        return not served().is_reference

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        """The engine's reasons against a configuration, each with the option that asks for it."""
        validate = super().validate_configuration
        given = inspect.signature(validate).bind(*args, **kwargs)
        given.apply_defaults()
        reasons = [
            cls._with_option(reason, given.arguments) for reason in validate(*args, **kwargs)
        ]
        config = get_current_vllm_config_or_none()
        has_cache = given.arguments["attn_type"] in (
            AttentionType.DECODER,
            AttentionType.ENCODER_DECODER,
        )
        if not reasons and has_cache and config is not None and config.model_config is not None:
            refusal = cls._refusal_of_served(config, given.arguments)
            reasons += [refusal] if refusal is not None else []
        return reasons

    @classmethod
    def _refusal_of_served(cls, config: VllmConfig, known: dict[str, Any]) -> str | None:
        """Why what is served takes no query of the model, in any dtype that those may have."""
        spec = _model_spec(config, known)
        refusals = [
            served().refusal(replace(spec, dtype=dtype)) for dtype in query_dtypes(spec.dtype)
        ]
        return None if None in refusals else refusals[0]

    @classmethod
    def check_served(cls, config: VllmConfig) -> None:
        """Raises ValueError when ANVIL_ATTENTION_IMPL names nothing that can be served, or what it
        names refuses the model's geometry."""
        refusal = cls._refusal_of_served(config, {})
        if refusal is not None:
            raise ValueError(refusal)

    @classmethod
    def set_observer(cls, observer: Observer | None) -> None:
        """Who sees the calls of this process's layers; see `observers`."""
        set_observer(observer)

    @classmethod
    def _with_option(cls, reason: str, given: dict[str, Any]) -> str:
        option = _OPTION_OF_REASON.get(reason)
        if option is None:
            return reason
        name, remedy = option
        return f"{reason} ({name}={given[name]}): {remedy}"


def _model_spec(config: VllmConfig, known: dict[str, Any]) -> AttentionSpec:
    """A layer of the model, as far as its configuration tells: the layer itself is asked about
    again when it is made. `known` are arguments of `validate_configuration`."""
    model, cache = config.model_config, config.cache_config
    head_size = known.get("head_size") or model.get_head_size()
    window = model.get_sliding_window()
    return AttentionSpec(
        num_heads=model.get_num_attention_heads(config.parallel_config),
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=head_size,
        value_head_size=head_size,
        block_size=known.get("block_size") or cache.block_size,
        dtype=known.get("dtype") or model.dtype,
        kv_dtype=cache_dtype(known.get("kv_cache_dtype") or cache.cache_dtype, model),
        scale=head_size**-0.5,
        sliding_window=window if known.get("has_sliding_window") else None,
        logits_soft_cap=getattr(model.hf_text_config, "attn_logit_softcapping", None) or None,
        has_sinks=known.get("has_sink", False),
        device=current_platform.device_type,
        causal=known.get("attn_type", AttentionType.DECODER) == AttentionType.DECODER
        and not known.get("use_non_causal", False),
        batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
    )


# What the engine says when a `supports_*` above is false -> the argument of
# `validate_configuration` that carries the option, and what to do about it.
_OPTION_OF_REASON = {
    "dtype not supported": ("dtype", "use --dtype bfloat16, float16 or float32"),
    "kv_cache_dtype not supported": (
        "kv_cache_dtype",
        "use --kv-cache-dtype auto, bfloat16, float16, fp8_e4m3 or fp8_e5m2",
    ),
    "partial multimodal token full attention not supported": (
        "use_mm_prefix",
        "prefix-LM models with bidirectional image tokens cannot run here",
    ),
    "MLA not supported": ("use_mla", "ANVIL_MLA serves such layers: leave --attention-backend out"),
    "sparse not supported": ("use_sparse", "models with sparse attention cannot run here"),
    "per-head quant scales not supported": (
        "use_per_head_quant_scales",
        "use --kv-cache-dtype auto, bfloat16 or float16",
    ),
    "R-SWA not supported": ("use_rswa", "models with reference sliding windows cannot run here"),
    "batch invariance not supported": (
        "use_batch_invariant",
        "unset VLLM_BATCH_INVARIANT, or use ANVIL_ATTENTION_IMPL=native",
    ),
    "KV connector not supported": ("use_kv_connector", "leave out --kv-transfer-config"),
    "PCP not supported": ("use_pcp", "use --prefill-context-parallel-size 1"),
    "DCP not supported": ("use_dcp", "use --decode-context-parallel-size 1"),
    "device-cpu query lens mismatch not supported, this is needed for adaptive verification": (
        "use_adaptive_verification",
        "turn adaptive verification off in --speculative-config, or use "
        "ANVIL_ATTENTION_IMPL=native",
    ),
}
