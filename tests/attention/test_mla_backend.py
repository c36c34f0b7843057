# SPDX-License-Identifier: Apache-2.0
"""What the MLA backend tells the engine: every member, and every refusal with what to do."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImplBase,
    AttentionType,
    MLAAttentionImpl,
)
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from anvil_attention import backend, serving
from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.mla_backend import AnvilMLABackend, AnvilMLAPrefillBackend
from anvil_attention.mla_impl import AnvilMLAImpl

USERS = Path(__file__).parent / "user_attention.py"
# Members of the ordinary backend that hold here, too.
BACKEND_SHARED = {
    "supported_dtypes": "what both attentions take",
    "forward_includes_kv_cache_update": "the cache is written before",
    "get_supported_kernel_block_sizes": "blocks of any size",
    "get_supported_head_sizes": "any",
    "supports_sliding_window": "passed on",
    "supports_kv_connector": "as there",
    "validate_configuration": "the engine's reasons, with options",
}
IMPL_INHERITED = {
    "is_sparse": "no: the backend refuses use_sparse",
    "supports_dense_mha_prefill": "read for sparse implementations only",
    "can_return_lse_for_decode": "no: for decode context parallelism only",
    "lse_base_on_e": "no sums are returned",
    "need_to_return_lse_for_decode": "set by the base class",
    "supports_dcp": "not implemented",
    "supports_mtp_with_cp_non_trivial_interleave_size": "not implemented",
    "supports_quant_query_input": "not implemented",
    "hisparse_cache": "None: for sparse implementations",
    **dict.fromkeys(
        (
            "dcp_world_size",
            "dcp_rank",
            "pcp_world_size",
            "pcp_rank",
            "total_cp_world_size",
            "total_cp_rank",
        ),
        "set by the base class",
    ),
    **dict.fromkeys(("num_heads", "head_size", "scale"), "set by our __init__"),
    "get_impl_variants": "there is one",
    "prepare_for_batch": "the metadata holds all state of a batch",
    "fused_output_quant_supported": "no fusion pass runs: nothing is compiled",
}


def members(*classes: type) -> set[str]:
    names: set[str] = set()
    for cls in classes:
        names |= set(vars(cls)) | set(vars(cls).get("__annotations__", {}))
    return {n for n in names if not n.startswith(("__", "_abc"))}


def test_members_of_the_implementation() -> None:
    offered = members(MLAAttentionImpl, AttentionImplBase)
    assert offered - set(vars(AnvilMLAImpl)) - set(IMPL_INHERITED) == set()
    assert set(IMPL_INHERITED) & set(vars(AnvilMLAImpl)) == set()
    assert set(IMPL_INHERITED) - offered == set()
    for name in ("forward_mqa", "forward_mha", "do_kv_cache_update", "__init__"):
        expected = inspect.signature(getattr(MLAAttentionImpl, name)).parameters
        actual = inspect.signature(getattr(AnvilMLAImpl, name)).parameters
        assert list(expected) == list(actual)[: len(expected)], name


def test_members_of_the_backend() -> None:
    ordinary = set(vars(AnvilAttentionBackend)) & members(AttentionBackend)
    assert ordinary - set(vars(AnvilMLABackend)) - set(BACKEND_SHARED) == set()
    assert set(BACKEND_SHARED) & set(vars(AnvilMLABackend)) == set()
    assert AnvilMLABackend.is_mla()
    assert not inspect.isabstract(AnvilMLABackend)


def test_the_engine_finds_it_by_name() -> None:
    from vllm_anvil.plugin.attention import register

    register()
    assert register(use_mla=True).get_class() is AnvilMLABackend
    assert AttentionBackendEnum[AnvilMLABackend.get_name()].get_class() is AnvilMLABackend


SUPPORTED = {
    "head_size": 576,
    "dtype": torch.bfloat16,
    "kv_cache_dtype": "auto",
    "block_size": 16,
    "use_mla": True,
    "has_sink": False,
    "use_sparse": False,
    "use_mm_prefix": False,
    "use_per_head_quant_scales": False,
    "device_capability": None,
    "attn_type": AttentionType.DECODER,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        *({"head_size": size} for size in (80, 288)),
        *({"dtype": dtype} for dtype in (torch.float16, torch.float32)),
        *({"kv_cache_dtype": name} for name in (None, "float16", "bfloat16")),
        *({"block_size": size} for size in (None, 1, 7, 128)),
        {"has_sliding_window": True},
    ],
)
def test_what_is_supported(change: dict[str, object]) -> None:
    assert AnvilMLABackend.validate_configuration(**{**SUPPORTED, **change}) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"use_mla": False},
            "non-MLA not supported (use_mla=False): ANVIL_ATTN serves such layers",
        ),
        ({"dtype": torch.float64}, "use --dtype bfloat16, float16 or float32"),
        *(
            ({"kv_cache_dtype": name}, f"(kv_cache_dtype={name}): use --kv-cache-dtype auto")
            for name in ("fp8", "fp8_e5m2", "fp8_ds_mla", "nvfp4_ds_mla", "int8_per_token_head")
        ),
        ({"use_sparse": True}, "models with sparse attention cannot run here"),
        ({"has_sink": True}, "set VLLM_MLA_DISABLE=1 to run the model without MLA"),
        ({"use_non_causal": True}, "set VLLM_MLA_DISABLE=1 to run the model without MLA"),
        ({"attn_type": AttentionType.ENCODER}, "attention type"),
        ({"use_batch_invariant": True}, "unset VLLM_BATCH_INVARIANT, or set VLLM_MLA_DISABLE=1"),
        ({"use_kv_connector": True}, "leave out --kv-transfer-config"),
        ({"use_pcp": True}, "use --prefill-context-parallel-size 1"),
        ({"use_dcp": True}, "use --decode-context-parallel-size 1"),
        ({"use_adaptive_verification": True}, "turn adaptive verification off"),
    ],
)
def test_what_is_refused_and_why(change: dict[str, object], reason: str) -> None:
    [actual] = AnvilMLABackend.validate_configuration(**{**SUPPORTED, **change})
    assert reason in actual


@pytest.mark.parametrize("refused", [576, 192])
def test_what_is_served_is_asked_about_latents_and_expanded_keys(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    served = serving.Served("mine", serving.resolve(f"{USERS}:right"))
    monkeypatch.setattr(serving, "_served", {"mine": served})
    monkeypatch.setenv(serving.VARIABLE, "mine")
    asked = []

    def refusal(spec: object) -> str | None:
        asked.append(spec)
        return "no" if spec.head_size == refused else None

    monkeypatch.setattr(serving.Served, "refusal", lambda self, spec: refusal(spec))
    dims = {
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        hf_text_config=SimpleNamespace(**dims),
        get_num_attention_heads=lambda parallel: 16,
        get_num_kv_heads=lambda parallel: 1,
        get_head_size=lambda: 576,
        get_sliding_window=lambda: None,
    )
    cache = SimpleNamespace(block_size=16, cache_dtype="auto")
    config = SimpleNamespace(model_config=model, cache_config=cache, parallel_config=None)
    monkeypatch.setattr(backend, "get_current_vllm_config_or_none", lambda: config)
    assert AnvilMLABackend.validate_configuration(**SUPPORTED) == ["no"]
    with pytest.raises(ValueError, match="no"):
        AnvilMLABackend.check_served(config)
    sizes = {(s.num_kv_heads, s.head_size, s.value_head_size, s.scale) for s in asked}
    expected = [(1, 576, 512, 192**-0.5), (16, 192, 128, 192**-0.5)]
    assert sizes == set(expected if refused == 192 else expected[:1])
    assert {(s.num_heads, s.dtype, s.kv_dtype) for s in asked if s.head_size == 576} == {
        (16, torch.bfloat16, torch.bfloat16),
        (16, torch.float32, torch.bfloat16),
    }
    assert {(s.dtype, s.kv_dtype) for s in asked if s.head_size == 192} <= {
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
    }


def test_the_prefill_backend_is_for_other_implementations() -> None:
    assert members(MLAPrefillBackend) >= {"run_prefill_new_tokens", "run_prefill_context_chunk"}
    made = AnvilMLAPrefillBackend(
        num_heads=1,
        scale=1.0,
        kv_lora_rank=1,
        qk_nope_head_dim=1,
        qk_rope_head_dim=1,
        v_head_dim=1,
        vllm_config=None,
    )
    for call in (made.clone().run_prefill_new_tokens, made.run_prefill_context_chunk):
        with pytest.raises(NotImplementedError, match="ANVIL_MLA attends to all keys"):
            call()
