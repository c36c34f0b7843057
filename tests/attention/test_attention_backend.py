# SPDX-License-Identifier: Apache-2.0
"""What the backend tells the engine: every member, every refusal, and the shape of the cache."""

import ast
import inspect
import math
import textwrap
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionImplBase,
    AttentionMetadataBuilder,
    AttentionType,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheLayout,
    SlidingWindowSpec,
)
from vllm.v1.worker.utils import allocate_kv_cache, select_common_block_size

from anvil_attention import backend
from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.impl import AnvilAttentionImpl
from anvil_attention.layer_cache import FLOAT8_CACHES, split_kv_cache
from anvil_attention.metadata import AnvilAttentionMetadataBuilder

# Why the base class's own version is right here.
BACKEND_INHERITED = {
    "full_cls_name": "names this class",
    "supports_head_size": "reads get_supported_head_sizes",
    "supports_dtype": "reads supported_dtypes",
    "supports_kv_cache_dtype": "reads supported_kv_cache_dtypes",
    "supports_block_size": "reads get_supported_kernel_block_sizes",
    "get_preferred_block_size": "reads get_supported_kernel_block_sizes",
    "customize_spec": "keys and values are packed as the engine does by default",
    "is_mla": "no",
    "is_sparse": "no",
    "is_ssm": "no",
    "supports_alibi_sqrt": "not implemented",
    "supports_mm_prefix": "not implemented",
    "supports_per_head_quant_scales": "not implemented: no quantised cache",
    "supports_rswa": "not implemented",
    "supports_pcp": "reads the impl's flag: not implemented",
    "supports_dcp": "reads the impl's flag: not implemented",
    "supports_non_causal_dcp": "reads the builder's flag: not implemented",
    "supports_compute_capability": "the device has no such number",
    "supports_combination": "no option excludes another",
    "supported_kv_cache_layouts": "None: any layout is read through its strides",
}
IMPL_INHERITED = {
    "is_sparse": "no",
    "supports_dense_mha_prefill": "for MLA only",
    "can_return_lse_for_decode": "no: for decode context parallelism only",
    "lse_base_on_e": "no sums are returned",
    "need_to_return_lse_for_decode": "set by the base class",
    "supports_pcp": "not implemented",
    "supports_dcp": "not implemented",
    "supports_mtp_with_cp_non_trivial_interleave_size": "not implemented",
    "supports_quant_query_input": "not implemented",
    "dcp_world_size": "set by the base class",
    "dcp_rank": "set by the base class",
    "pcp_world_size": "set by the base class",
    "pcp_rank": "set by the base class",
    "total_cp_world_size": "set by the base class",
    "total_cp_rank": "set by the base class",
    "num_heads": "set by our __init__",
    "head_size": "set by our __init__",
    "scale": "set by our __init__",
    "kv_cache_dtype": "set by our __init__",
    "kv_quant_mode": "reads kv_cache_dtype",
    "process_weights_after_loading": "weights are used as they are loaded",
    "get_impl_variants": "there is one",
    "prepare_for_batch": "the metadata holds all state of a batch",
    "fused_output_quant_supported": "no",
    "fused_qk_norm_rope_kvcache_supported": "no",
    "fused_qk_norm_mrope_kvcache_supported": "no",
    "fused_rope_kvcache_supported": "no",
    "do_qk_norm_rope_kvcache_update": "not asked for: fused_qk_norm_rope_kvcache_supported",
    "do_qk_norm_mrope_kvcache_update": "not asked for: fused_qk_norm_mrope_kvcache_supported",
    "do_rope_and_kv_cache_update": "not asked for: fused_rope_kvcache_supported",
}
BUILDER_INHERITED = {
    "requires_block_table_width": "no tables are kept between steps",
    "_cudagraph_support": "not read: get_cudagraph_support asks the implementation",
    "get_varlen_cudagraph_max_query_len": "None: ALWAYS says it, and less promises less",
    "_init_reorder_batch_threshold": "not called: no reordering",
    "build_for_cudagraph_capture": "builds as for any other step, from the same buffers",
    "build_for_drafting": "builds as for any other step",
}


def members(*classes: type) -> set[str]:
    """Attributes and methods, annotated ones without a value included."""
    names: set[str] = set()
    for cls in classes:
        names |= set(vars(cls)) | set(vars(cls).get("__annotations__", {}))
    return {
        name for name in names if not name.startswith(("__", "_abc")) and name != "_is_protocol"
    }


CONTRACTS = [
    (AnvilAttentionBackend, (AttentionBackend,), BACKEND_INHERITED),
    (AnvilAttentionImpl, (AttentionImpl, AttentionImplBase), IMPL_INHERITED),
    (AnvilAttentionMetadataBuilder, (AttentionMetadataBuilder,), BUILDER_INHERITED),
]


@pytest.mark.parametrize(("ours", "bases", "inherited"), CONTRACTS)
def test_every_member_is_overridden_or_inherited_on_purpose(
    ours: type, bases: tuple[type, ...], inherited: dict[str, str]
) -> None:
    offered = members(*bases) - {"__parameters__", "_generic"}
    assert offered - set(vars(ours)) - set(inherited) == set(), "override these or list them"
    assert set(inherited) & set(vars(ours)) == set(), "overridden, yet listed as inherited"
    assert set(inherited) - offered == set(), "listed, but the engine has dropped them"
    assert not inspect.isabstract(ours)


@pytest.mark.parametrize(("ours", "bases", "inherited"), CONTRACTS)
def test_overrides_accept_what_the_engine_passes(
    ours: type, bases: tuple[type, ...], inherited: dict[str, str]
) -> None:
    for name in (members(*bases) & set(vars(ours))) | {"__init__"}:
        theirs = getattr(bases[0], name)
        if not callable(theirs) or (name == "__init__" and ours is AnvilAttentionBackend):
            continue
        expected = inspect.signature(theirs).parameters
        actual = inspect.signature(getattr(ours, name)).parameters
        if any(p.kind is p.VAR_KEYWORD for p in actual.values()) and name != "__init__":
            continue
        assert list(expected) == list(actual)[: len(expected)], name
        for parameter, wanted in expected.items():
            assert actual[parameter].default == wanted.default, (name, parameter)


def test_the_engine_finds_it_by_name() -> None:
    from vllm_anvil.plugin.attention import register

    register()
    register()
    assert AttentionBackendEnum[AnvilAttentionBackend.get_name()].get_class() is (
        AnvilAttentionBackend
    )


SUPPORTED = {
    "head_size": 64,
    "dtype": torch.bfloat16,
    "kv_cache_dtype": "auto",
    "block_size": 16,
    "use_mla": False,
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
        *({"head_size": size} for size in (1, 40, 80, 576)),
        *({"dtype": dtype} for dtype in (torch.float16, torch.float32)),
        *({"kv_cache_dtype": name} for name in (None, "float16", "bfloat16", *FLOAT8_CACHES)),
        *({"block_size": size} for size in (None, 1, 7, 128)),
        {"has_sink": True},
        {"has_sliding_window": True},
        {"use_non_causal": True},
        {"use_batch_invariant": True},
        {"use_adaptive_verification": True},
        *({"attn_type": kind} for kind in AttentionType),
    ],
)
def test_what_is_supported(change: dict[str, object]) -> None:
    assert AnvilAttentionBackend.validate_configuration(**{**SUPPORTED, **change}) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"dtype": torch.float64},
            "dtype not supported (dtype=torch.float64): use --dtype bfloat16, float16 or float32",
        ),
        *(
            (
                {"kv_cache_dtype": name},
                f"kv_cache_dtype not supported (kv_cache_dtype={name}): "
                "use --kv-cache-dtype auto, bfloat16, float16, fp8_e4m3 or fp8_e5m2",
            )
            for name in ("fp8_ds_mla", "nvfp4", "int8_per_token_head", "turboquant_k8v4")
        ),
        (
            {"use_mla": True},
            "MLA not supported (use_mla=True): ANVIL_MLA serves such layers: "
            "leave --attention-backend out",
        ),
        (
            {"use_sparse": True},
            "sparse not supported (use_sparse=True): models with sparse attention cannot run here",
        ),
        ({"use_mm_prefix": True}, "(use_mm_prefix=True)"),
        ({"use_per_head_quant_scales": True}, "(use_per_head_quant_scales=True)"),
        ({"use_rswa": True}, "(use_rswa=True)"),
        ({"use_kv_connector": True}, "leave out --kv-transfer-config"),
        ({"use_pcp": True}, "use --prefill-context-parallel-size 1"),
        ({"use_dcp": True}, "use --decode-context-parallel-size 1"),
    ],
)
def test_what_is_refused_and_why(change: dict[str, object], reason: str) -> None:
    [actual] = AnvilAttentionBackend.validate_configuration(**{**SUPPORTED, **change})
    assert reason in actual


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"use_batch_invariant": True}, "unset VLLM_BATCH_INVARIANT"),
        ({"use_adaptive_verification": True}, "turn adaptive verification off"),
    ],
)
def test_what_the_reference_does_not_promise(
    change: dict[str, object], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_ATTENTION_IMPL", "reference")
    [actual] = AnvilAttentionBackend.validate_configuration(**{**SUPPORTED, **change})
    assert remedy in actual
    assert actual.endswith("or use ANVIL_ATTENTION_IMPL=native")


# Reasons of the engine's that cannot be ours, and so need no remedy.
NEVER_GIVEN = {
    "head_size not supported": "every size is",
    "block_size not supported": "every size is",
    "non-MLA not supported": "it is",
    "non-sparse not supported": "it is",
    "attention sinks not supported": "they are",
    "sliding window not supported": "they are",
    "non-causal attention not supported": "it is",
    "attention type {attn_type} not supported": "all are",
    "compute capability not supported": "the device has no such number",
    "non-causal MLA attention with DCP not supported": "given beside those of MLA and of DCP",
}


def test_every_reason_of_the_engines_has_a_remedy_or_is_never_given() -> None:
    source = textwrap.dedent(inspect.getsource(AttentionBackend.validate_configuration))
    reasons = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "invalid_reasons.append":
            [reason] = node.args
            if isinstance(reason, ast.Name):  # supports_combination's, which is inherited
                continue
            text = ast.unparse(reason)
            reasons.add(ast.literal_eval(text.removeprefix("f")))
    assert len(reasons) > 15
    assert reasons == set(backend._OPTION_OF_REASON) | set(NEVER_GIVEN)
    assert set(backend._OPTION_OF_REASON) & set(NEVER_GIVEN) == set()


def test_refusals_work_with_positional_arguments_and_add_up() -> None:
    change = {"kv_cache_dtype": "nvfp4", "use_mla": True}
    reasons = AnvilAttentionBackend.validate_configuration(*{**SUPPORTED, **change}.values())
    assert len(reasons) == 2
    assert "kv_cache_dtype=nvfp4" in reasons[0]


@pytest.mark.parametrize("block_size", [1, 7, 16, 48, 128])
def test_blocks_are_not_split(block_size: int) -> None:
    assert select_common_block_size(block_size, [AnvilAttentionBackend]) == block_size


def allocate(
    layout: KVCacheLayout, groups: list[KVCacheGroupSpec], num_blocks: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """The caches of a model, as the engine plans and its runner allocates them."""
    vllm_config = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            num_gpu_blocks_override=num_blocks,
            prefix_cache_retention_interval=None,
        ),
    )
    config = get_kv_cache_config_from_groups(vllm_config, groups, 1 << 20)
    block_sizes = [group.kv_cache_spec.block_size for group in groups]
    return allocate_kv_cache(config, device, layout, block_sizes)


FULL = {"block_size": 3, "num_kv_heads": 2, "head_size": 4, "dtype": torch.float32}


@pytest.mark.parametrize("layout", list(KVCacheLayout), ids=lambda layout: layout.name)
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(
            [KVCacheGroupSpec(["a", "b", "c"], FullAttentionSpec(**FULL))], id="one_group"
        ),
        pytest.param(
            [KVCacheGroupSpec(["a", "b"], FullAttentionSpec(**FULL, head_size_v=6))],
            id="other_value_head_size",
        ),
        pytest.param(
            [
                KVCacheGroupSpec(["a", "b"], FullAttentionSpec(**FULL)),
                KVCacheGroupSpec(["c", "d"], SlidingWindowSpec(**FULL, sliding_window=8)),
            ],
            id="two_groups",
        ),
    ],
)
def test_views_are_where_the_runner_allocates(
    device: torch.device, layout: KVCacheLayout, groups: list[KVCacheGroupSpec]
) -> None:
    num_blocks = 5
    caches = allocate(layout, groups, num_blocks, device)
    storage = next(iter(caches.values())).untyped_storage()
    elements = torch.empty(0, dtype=torch.float32, device=device).set_(storage)
    elements.copy_(torch.arange(elements.numel(), dtype=torch.float32))
    for group in groups:
        spec = group.kv_cache_spec
        content = spec.head_size + spec.head_size_v
        sizes = (
            len(group.layer_names),
            num_blocks,
            spec.num_kv_heads,
            spec.block_size,
            content,
        )
        # Where an element of [layer, block, head, token, content] is: the layout's name says
        # which dimension is outermost, and nothing lies in between.
        places = torch.arange(math.prod(sizes), dtype=torch.float32)
        physical = places.view([sizes[dim] for dim in layout.stride_order])
        logical = physical.permute([layout.stride_order.index(dim) for dim in range(5)])
        for layer, name in enumerate(group.layer_names):
            keys, values = split_kv_cache(caches[name], spec.head_size)
            by_token = logical[layer].transpose(1, 2)
            assert torch.equal(keys.cpu(), by_token[..., : spec.head_size])
            assert torch.equal(values.cpu(), by_token[..., spec.head_size :])
            assert keys.untyped_storage().data_ptr() == storage.data_ptr()
