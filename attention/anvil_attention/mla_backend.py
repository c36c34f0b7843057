# SPDX-License-Identifier: Apache-2.0
"""vLLM's description of multi-head latent attention here: what it supports, and what it refuses.

The engine chooses a backend for layers of the one kind and of the other, and takes all of
MLA's parts from one that says `is_mla`. So it is a backend of its own beside `backend`, of which
it has what is the same for both: the device, the caches' layout, and the words of refusals.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention.mla_attention import get_mla_dims
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from .backend import AnvilAttentionBackend, _model_spec
from .layer_cache import query_dtypes
from .mla_impl import AnvilMLAImpl
from .mla_metadata import AnvilMLAMetadataBuilder
from .serving import served

if TYPE_CHECKING:
    from vllm.config.cache import CacheDType


class AnvilMLABackend(AnvilAttentionBackend):
    """Multi-head latent attention on anvil devices, for decoders."""

    supported_kv_cache_dtypes: ClassVar[list["CacheDType"]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "ANVIL_MLA"

    @staticmethod
    def get_impl_cls() -> type[AnvilMLAImpl]:  # type: ignore[override]  # not of the other kind
        return AnvilMLAImpl

    @staticmethod
    def get_builder_cls() -> type[AnvilMLAMetadataBuilder]:
        return AnvilMLAMetadataBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sink(cls) -> bool:
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        # Only drafts of speculative decoding ask for it.
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        # The engine's products with the parts of kv_b_proj are torch.bmm.
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        # Which requests are expanded is decided by the host's query lengths.
        return False

    @classmethod
    def _with_option(cls, reason: str, given: dict[str, Any]) -> str:
        if reason not in _OPTION_OF_REASON:
            return super()._with_option(reason, given)
        name, remedy = _OPTION_OF_REASON[reason]
        return f"{reason} ({name}={given[name]}): {remedy}"

    @classmethod
    def _refusal_of_served(cls, config: VllmConfig, known: dict[str, Any]) -> str | None:
        dims = get_mla_dims(config.model_config)
        head_size = dims.qk_nope_head_dim + dims.qk_rope_head_dim
        latents = replace(
            _model_spec(config, known),
            num_kv_heads=1,
            head_size=dims.kv_lora_rank + dims.qk_rope_head_dim,
            value_head_size=dims.kv_lora_rank,
            scale=head_size**-0.5,
        )
        expanded = replace(
            latents,
            num_kv_heads=latents.num_heads,
            head_size=head_size,
            value_head_size=dims.v_head_dim,
        )
        dtypes = query_dtypes(latents.dtype)
        for specs in (
            [replace(latents, dtype=dtype) for dtype in dtypes],
            [replace(expanded, dtype=dtype, kv_dtype=dtype) for dtype in dtypes],
        ):
            refusals = [served().refusal(spec) for spec in specs]
            if None not in refusals:
                return refusals[0]
        return None


# As the table of that name in `backend`, for what is refused here only, or for another reason.
_WITHOUT_MLA = "set VLLM_MLA_DISABLE=1 to run the model without MLA"
_OPTION_OF_REASON = {
    "non-MLA not supported": (
        "use_mla",
        "ANVIL_ATTN serves such layers: leave --attention-backend out",
    ),
    "attention sinks not supported": ("has_sink", _WITHOUT_MLA),
    "non-causal attention not supported": ("use_non_causal", _WITHOUT_MLA),
    "batch invariance not supported": (
        "use_batch_invariant",
        f"unset VLLM_BATCH_INVARIANT, or {_WITHOUT_MLA}",
    ),
    "device-cpu query lens mismatch not supported, this is needed for adaptive verification": (
        "use_adaptive_verification",
        "turn adaptive verification off in --speculative-config",
    ),
}


class AnvilMLAPrefillBackend(MLAPrefillBackend):
    """What the engine's layer has to have for implementations that derive from its MLACommonImpl:
    attention to the keys of a step, and to chunks of the cached ones before them, whose results
    are merged. AnvilMLAImpl is none of these and attends to all keys at once, see `mla_impl`.
    """

    supported_dtypes: ClassVar[list[torch.dtype]] = AnvilAttentionBackend.supported_dtypes

    @staticmethod
    def get_name() -> str:
        return "ANVIL_MLA"

    def run_prefill_new_tokens(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: a part of the keys has no result of its own here."""
        raise NotImplementedError(
            "ANVIL_MLA attends to all keys of a request at once. Another MLA implementation than "
            "its own needs an MLA prefill backend of its own, too"
        )

    def run_prefill_context_chunk(
        self, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises NotImplementedError, as `run_prefill_new_tokens`."""
        raise NotImplementedError(
            "ANVIL_MLA attends to all keys of a request at once. Another MLA implementation than "
            "its own needs an MLA prefill backend of its own, too"
        )
