# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings as the engine builds them: each gives what its own `forward_native` gives."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

import vllm_anvil.device  # noqa: F401  registers the device
from vllm_anvil.plugin.custom_ops import rotary
from vllm_anvil.plugin.op_arguments import fallbacks

pytestmark = pytest.mark.usefixtures("platform", "anvil_layers")

HEAD_SIZE = 32
POSITIONS = 64
SCALED = {"factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Name -> class that is built, rope_parameters. Those of `OURS` run by the op.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("RotaryEmbedding", {}),
    "partial": ("RotaryEmbedding", {"partial_rotary_factor": 0.5}),
    "proportional": (
        "Gemma4RotaryEmbedding",
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    ),
    "llama3": ("Llama3RotaryEmbedding", {"rope_type": "llama3", **SCALED, **LLAMA3}),
    "linear": ("LinearScalingRotaryEmbedding", {"rope_type": "linear", "factor": 2.0}),
    "ntk": ("NTKScalingRotaryEmbedding", {"rope_type": "ntk", "factor": 2.0}),
    "ntk mixed": (
        "NTKScalingRotaryEmbedding",
        {"rope_type": "ntk", "factor": 2.0, "mixed_b": 0.6},
    ),
    "dynamic alpha": ("DynamicNTKAlphaRotaryEmbedding", {"rope_type": "dynamic", "alpha": 8.0}),
    "dynamic factor": ("DynamicNTKScalingRotaryEmbedding", {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": ("YaRNScalingRotaryEmbedding", {"rope_type": "yarn", **SCALED}),
    "deepseek_yarn": ("DeepseekScalingRotaryEmbedding", {"rope_type": "deepseek_yarn", **SCALED}),
    "deepseek_llama_scaling": (
        "DeepseekScalingRotaryEmbedding",
        {"rope_type": "deepseek_llama_scaling", "partial_rotary_factor": 0.5, **SCALED},
    ),
    "mrope": ("MRotaryEmbedding", {"mrope_section": [6, 5, 5]}),
    "mrope interleaved": (
        "MRotaryEmbedding",
        {"mrope_section": [8, 4, 4], "mrope_interleaved": True},
    ),
    "mrope yarn": ("MRotaryEmbedding", {"rope_type": "yarn", "mrope_section": [6, 5, 5], **SCALED}),
}
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "bailing_mrope": (
        "BailingMRotaryEmbedding",
        {"rope_type": "bailing_mrope", "mrope_section": [8, 4, 4]},
    ),
    "fope": (
        "FourierRotaryEmbedding",
        {
            "use_fope": True,
            "num_key_value_heads": 2,
            "num_inv_freq": 8,
            "fope_sep_head": True,
            "fope_init_factor": 0.1,
        },
    ),
    "mllama4": ("Llama4VisionRotaryEmbedding", {"rope_type": "mllama4"}),
    "openpangu": (
        "MRotaryEmbeddingInterleaved",
        {"rope_type": "openpangu", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
    ),
    "deepseek v4": (
        "DeepseekV4ScalingRotaryEmbedding",
        {"rope_type": "deepseek_yarn", "is_deepseek_v4": True, **SCALED},
    ),
}
# No CustomOp, hence nothing to plug in: needs a model's configuration to be built.
NO_SEAM = {"longrope"}


def rope(name: str, dtype: torch.dtype, is_neox: bool = True) -> Any:
    parameters = (OURS | ENGINES)[name][1]
    rotary_embedding._ROPE_DICT.clear()
    with torch.device("anvil"):
        return rotary_embedding.get_rope(
            HEAD_SIZE,
            POSITIONS,
            is_neox_style=is_neox,
            rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **parameters},
            dtype=dtype,
        )


def states(layer: Any, form: str, dtype: torch.dtype, tokens: int) -> tuple[Tensor, Tensor]:
    """A query of 3 heads and a key of 2, as models hand them over."""
    generator = torch.Generator().manual_seed(tokens)
    packed = torch.randn(tokens, 7 * HEAD_SIZE, generator=generator).to("anvil", dtype)
    query, key, _ = packed.split([3 * HEAD_SIZE, 2 * HEAD_SIZE, 2 * HEAD_SIZE], dim=-1)
    if form == "parts of heads":  # the rotated part of heads that are longer
        wide = torch.randn(tokens, 3, HEAD_SIZE + 8, generator=generator).to("anvil", dtype)
        return wide[..., 8:], key.unflatten(-1, (2, HEAD_SIZE))
    if form == "heads":
        return query.unflatten(-1, (3, HEAD_SIZE)), key.unflatten(-1, (2, HEAD_SIZE))
    if form == "contiguous":
        return query.contiguous(), key.contiguous()
    return query, key


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OURS)
def test_each_gives_what_its_native_form_gives(
    name: str, dtype: torch.dtype, is_neox: bool
) -> None:
    layer = rope(name, dtype, is_neox)
    engines, _ = OURS[name]
    assert type(layer) is rotary.LAYERS[engines]
    apart = ("heads", "parts of heads")
    before = fallbacks.copy()
    for form in apart if "deepseek" in name else ("contiguous", "split", *apart):
        for tokens in (5, 1, 0):
            shape = (3, tokens) if "mrope" in name and form != "heads" else (tokens,)
            generator = torch.Generator().manual_seed(tokens)
            positions = torch.randint(POSITIONS, shape, generator=generator).to("anvil")
            query, key = states(layer, form, dtype, tokens)
            exact = native_in_float64(layer, positions, query, key) if tokens else (query, key)
            turned = layer(positions, query, key)
            assert turned[0] is query
            assert turned[1] is key
            for result, right in zip(turned, exact, strict=True):
                assert result.dtype == dtype
                unit = 2.0**-22 if dtype == torch.float32 else 2.0**-7
                right = right.cpu()
                error = (result.cpu().double() - right).abs()
                # Two products of up to 4 in float32, whose sum may be small, and its rounding.
                assert (error <= right.abs() * unit + 1e-6).all(), (form, tokens)
    assert fallbacks == before


def native_in_float64(
    layer: Any, positions: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor]:
    """What the engine's own forward gives for these values, with the layer's table, on the host."""
    table = layer.cos_sin_cache
    layer.cos_sin_cache = table.cpu().double()
    try:
        return layer.forward_native(
            positions.cpu(), query.cpu().double().contiguous(), key.cpu().double().contiguous()
        )
    finally:
        layer.cos_sin_cache = table


def test_a_query_alone() -> None:
    layer = rope("partial", torch.float32)
    positions = torch.arange(5, device="anvil")
    both, key = states(layer, "contiguous", torch.float32, 5)
    alone = both.clone()
    layer(positions, both, key)
    turned, none = layer(positions, alone, None)
    assert none is None
    assert torch.equal(turned, both)


def test_tables_stay_as_they_are() -> None:
    layer = rope("default", torch.float32)
    table = layer.cos_sin_cache
    query, key = states(layer, "contiguous", torch.bfloat16, 5)
    layer(torch.arange(5, device="anvil"), query, key)
    assert layer.cos_sin_cache is table
    assert query.dtype == torch.bfloat16


def test_positions_of_any_integer_dtype() -> None:
    layer = rope("default", torch.float32)
    results = []
    for dtype in (torch.int64, torch.int32, torch.int16):
        query, key = states(layer, "split", torch.float32, 5)
        positions = torch.tensor([3, 0, 7, 7, 63], device="anvil", dtype=dtype)
        results.append(layer(positions, query, key)[0])
    assert all(torch.equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("case", ["float64", "gaps", "two batches", "table elsewhere"])
def test_what_the_op_does_not_take_runs_by_the_engine(case: str) -> None:
    layer = rope("default", torch.float32)
    positions = torch.arange(6, device="anvil")
    query, key = states(layer, "contiguous", torch.float32, 6)
    expected, _ = layer.forward_native(positions, query, key)
    if case == "float64":
        query, key = query.double(), key.double()
    elif case == "gaps":
        query = query.T.contiguous().T.view(6, -1)
    elif case == "two batches":
        positions = positions.view(2, 3)
        query, key = query.view(2, 3, -1), key.view(2, 3, -1)
    else:
        layer.cos_sin_cache = layer.cos_sin_cache.cpu()
    before = fallbacks.copy()
    result, _ = layer(positions, query, key)
    assert [name for name, _ in (fallbacks - before)] == ["RotaryEmbedding"]
    assert torch.allclose(result.cpu().float().view(6, -1), expected.cpu(), atol=1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_those_of_other_rules_stay_the_engines(name: str) -> None:
    layer = rope(name, torch.float32, is_neox=True)
    engines, _ = ENGINES[name]
    assert type(layer) is getattr(rotary_embedding, engines)
    assert engines in rotary.KEPT


def test_every_class_of_the_engine_is_decided_on() -> None:
    for module in pkgutil.iter_modules(rotary_embedding.__path__):
        importlib.import_module(f"{rotary_embedding.__name__}.{module.name}")

    def below(cls: type) -> set[str]:
        return {name for sub in cls.__subclasses__() for name in {sub.__name__, *below(sub)}}

    engines = {n for n in below(RotaryEmbeddingBase) if not n.startswith(("Anvil", "_"))}
    assert engines == rotary.LAYERS.keys() | rotary.KEPT.keys()
    assert not rotary.LAYERS.keys() & rotary.KEPT.keys()


def test_every_rope_type_of_the_engine_is_tried() -> None:
    tree = ast.parse(inspect.getsource(rotary_embedding.get_rope))
    types = {
        constant.value
        for compared in ast.walk(tree)
        if isinstance(compared, ast.Compare)
        and isinstance(compared.left, ast.Name)
        and compared.left.id == "scaling_type"
        for constant in ast.walk(compared)
        if isinstance(constant, ast.Constant)
    }
    tried = {parameters.get("rope_type", "default") for _, parameters in (OURS | ENGINES).values()}
    assert types == tried | NO_SEAM
