# SPDX-License-Identifier: Apache-2.0
"""Attention layers whose norms, rotary embedding and KV write are one op: which models' layers
these are, what one step does, and that an engine generates the same with them."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm import forward_context
from vllm.config import VllmConfig
from vllm.config.kernel import IrOpPriorityConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding, RotaryEmbedding
from vllm.v1.attention.backend import AttentionType

import vllm_anvil.device  # noqa: F401  registers the device
from anvil_attention.backend import AnvilAttentionBackend
from anvil_attention.impl import AnvilAttentionImpl
from vllm_anvil.plugin import layer_graph, op_arguments
from vllm_anvil.plugin.seams import attention_steps

pytestmark = pytest.mark.usefixtures("platform", "anvil_layers")

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS = 4, 2, 32, 4, 6
NAME = "model.layers.0.self_attn.attn"


# ------------------------------------------------------------------ in an engine


@pytest.fixture(scope="module")
def reports(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, python: Any) -> Any:
    """Of tiny models of random weights: Llama, and Qwen3, which norms queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    qwen3 = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    shutil.copytree(tiny_model, qwen3, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(qwen3)
    program = Path(__file__).with_name("fusion_report.py")
    result = python.run(str(program), str(tiny_model), str(qwen3), timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(x for x in result.stdout.splitlines() if x.startswith("REPORT "))
    return dict(zip(("llama", "qwen3"), json.loads(line.removeprefix("REPORT ")), strict=True))


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_an_engine_calls_one_op_a_layer_and_step(reports: Any, model: str) -> None:
    report = reports[model]
    assert report["layers"] == [f"model.layers.{i}.self_attn" for i in range(2)]
    fused, apart = report["fused"], report["apart"]
    assert fused["steps"] == apart["steps"] > 8
    steps, layers = fused["steps"], len(report["layers"])
    assert fused["calls"]["qk_norm_rotary_write_kv_cache"] == layers * steps
    assert apart["calls"]["rotary_embedding"] == layers * steps
    assert apart["calls"]["write_kv_cache"] == layers * steps
    # Two norms of a layer and the last one have a residual, the first has none.
    head_norms = 2 * layers if model == "qwen3" else 0
    assert apart["calls"]["rms_norm"] == (1 + head_norms) * steps
    assert fused["calls"]["rms_norm"] == steps
    assert not {"rotary_embedding", "write_kv_cache"} & fused["calls"].keys()
    assert fused["fallbacks"] == apart["fallbacks"] == []


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_an_engine_generates_the_same(reports: Any, model: str) -> None:
    fused, apart = reports[model]["fused"], reports[model]["apart"]
    assert fused["tokens"] == apart["tokens"]
    assert fused["logprobs"] == apart["logprobs"]  # the last bit


@pytest.mark.parametrize("model", ["llama", "qwen3"])
@pytest.mark.parametrize("part", ["fused", "apart"])
def test_an_engine_calls_the_other_fused_ops(reports: Any, model: str, part: str) -> None:
    """Residual and RMS norm, gate and product: each for every layer and step."""
    report = reports[model]
    calls, steps = report[part]["calls"], report[part]["steps"]
    assert calls["fused_add_rms_norm_"] == 2 * len(report["layers"]) * steps
    assert calls["silu_and_mul"] == len(report["layers"]) * steps


# ------------------------------------------------------------------ what a module needs


class SelfAttention(nn.Module):
    """An attention module as models write it, with layers of the engine."""

    def __init__(self, rotary: nn.Module, attn: nn.Module, norm: Any = None) -> None:
        super().__init__()
        sizes = [n * HEAD_SIZE for n in (HEADS, KV_HEADS, KV_HEADS)]
        self.sizes = sizes
        self.qkv_proj = Projection()
        if norm is not None:
            self.q_norm, self.k_norm = norm(HEAD_SIZE).to("anvil"), norm(HEAD_SIZE).to("anvil")
        self.rotary_emb, self.attn = rotary, attn

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.sizes, dim=-1)
        if hasattr(self, "q_norm"):
            q = self.q_norm(q.unflatten(-1, (HEADS, HEAD_SIZE))).flatten(-2, -1)
            k = self.k_norm(k.unflatten(-1, (KV_HEADS, HEAD_SIZE))).flatten(-2, -1)
        q, k = self.rotary_emb(positions, q, k)
        return self.attn(q, k, v)


class Projection(LinearBase):
    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x * 1, None


def attention(**changes: Any) -> Any:
    """The engine's attention layer, of which only what the cache needs is there."""
    layer: Any = object.__new__(Attention)
    nn.Module.__init__(layer)
    layer.layer_name, layer.attn_type = NAME, AttentionType.DECODER
    layer.num_heads, layer.num_kv_heads = HEADS, KV_HEADS
    layer.head_size = layer.head_size_v = HEAD_SIZE
    layer.kv_sharing_target_layer_name = layer.query_quant = None
    layer.attn_backend, layer.use_direct_call = AnvilAttentionBackend, True
    layer.impl = AnvilAttentionImpl(HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS)
    shape = (BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
    layer.kv_cache = torch.zeros(shape, dtype=torch.bfloat16, device="anvil")
    for name, value in changes.items():
        setattr(layer, name, value)
    return layer


def rotary(cls: Any = RotaryEmbedding, **options: Any) -> Any:
    return cls(HEAD_SIZE, HEAD_SIZE, 64, 10000, True, torch.float32, **options).to("anvil")


def config(*providers: str) -> VllmConfig:
    found = VllmConfig()
    if providers:
        found.kernel_config.ir_op_priority = IrOpPriorityConfig(rms_norm=list(providers))
    return found


def tokens(count: int) -> dict[str, Tensor]:
    size = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
    hidden = torch.randn(count, size, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(count) * 7 % 64
    return {"positions": positions.to("anvil"), "hidden_states": hidden.to("anvil")}


def run(module: Any, slots: list[int] | None, monkeypatch: Any, **inputs: Tensor) -> Tensor:
    """What the module hands to its attention, or gets from it: the queries as they are then.

    Without slots as in a run that profiles memory."""
    mapping = {} if slots is None else {NAME: torch.tensor(slots, device="anvil")}
    context = forward_context.ForwardContext(
        no_compile_layers={NAME: module.attn}, attn_metadata=None, slot_mapping=mapping
    )
    monkeypatch.setattr(forward_context, "_forward_context", context)
    seen = []

    def forward(layer: Any, query: Tensor, *others: Any, output: Tensor, **options: Any) -> Tensor:
        seen.append(query.clone())
        return output.zero_()

    monkeypatch.setattr(module.attn.impl, "forward", forward)
    with torch.inference_mode():
        module(**inputs)
    (query,) = seen
    return query


@pytest.mark.parametrize("norm", [None, RMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("layers", ["plain", "three positions"])
def test_a_step_is_its_layers_one_by_one(monkeypatch: Any, norm: Any, layers: str) -> None:
    inputs = tokens(5)
    if layers == "plain":
        turn = rotary()
    else:
        turn = rotary(MRotaryEmbedding, mrope_section=[8, 4, 4])
        inputs["positions"] = torch.stack([inputs["positions"] + i for i in range(3)]) % 64
    module = SelfAttention(turn, attention(), norm)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    slots = [3, -1, 9, 0, 22]
    apart = run(module, slots, monkeypatch, **inputs)
    cache = module.attn.kv_cache.clone()
    assert cache.count_nonzero() > 0
    assert attention_steps.fuse(nn.ModuleDict({"layer": module}), config()) == ["layer"]
    for names in ("rotary_emb", "q_norm", "k_norm"):
        if hasattr(module, names):
            monkeypatch.setattr(getattr(module, names), "forward", None)  # not called
    module.attn.kv_cache.zero_()
    before = op_arguments.fallbacks.copy()
    assert torch.equal(run(module, slots, monkeypatch, **inputs).cpu(), apart.cpu())
    assert torch.equal(module.attn.kv_cache.cpu(), cache.cpu())
    assert op_arguments.fallbacks == before


@pytest.mark.parametrize("case", ["no slots", "short positions"])
def test_what_a_step_cannot_do_its_layers_do(monkeypatch: Any, case: str) -> None:
    inputs = tokens(5)
    module = SelfAttention(rotary(), attention(), RMSNorm)
    slots: list[int] | None = [3, -1, 9, 0, 22]
    if case == "no slots":
        slots = None
    else:
        inputs["positions"] = inputs["positions"].short()
    apart = run(module, slots, monkeypatch, **inputs)
    cache = module.attn.kv_cache.clone()
    module.attn.kv_cache.zero_()
    assert attention_steps.fuse(nn.ModuleDict({"layer": module}), config()) == ["layer"]
    assert torch.equal(run(module, slots, monkeypatch, **inputs).cpu(), apart.cpu())
    assert torch.equal(module.attn.kv_cache.cpu(), cache.cpu())
    assert (cache.count_nonzero() > 0) == (slots is not None)


class OtherAttention(Attention):
    """Cross-attention and the like, which write otherwise."""


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_type": AttentionType.ENCODER_ONLY},
        {"kv_sharing_target_layer_name": "model.layers.1.self_attn.attn"},
        {"query_quant": torch.nn.Identity()},
        {"head_size": HEAD_SIZE // 2},
        {"__class__": OtherAttention},
        {"impl": AnvilAttentionImpl(HEADS, 32, 1.0, attn_type=AttentionType.ENCODER)},
        {"impl": object()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_attention_layers_stay(changes: dict[str, Any]) -> None:
    module = SelfAttention(rotary(), attention(**changes))
    assert attention_steps.fuse(nn.ModuleDict({"layer": module}), config()) == []
    assert "forward" not in vars(module)


def test_other_rotary_layers_stay() -> None:
    off = rotary()
    off._forward_method = off.forward_native  # custom_ops=["-RotaryEmbedding"]
    for layer in (off, nn.Identity()):
        module = SelfAttention(layer, attention())
        assert attention_steps.fuse(nn.ModuleDict({"layer": module}), config()) == []


def test_a_variable_turns_it_off(monkeypatch: Any) -> None:
    monkeypatch.setenv("ANVIL_LAYER_FUSION", "0")
    module = SelfAttention(rotary(), attention())
    assert attention_steps.fuse(nn.ModuleDict({"layer": module}), config()) == []


def test_norms_that_the_op_does_not_compute_stay(monkeypatch: Any) -> None:
    def norms(case: str) -> Any:
        def make(size: int) -> Any:
            if case == "another size":
                return RMSNorm(2 * size)
            if case == "a part of a head":
                return RMSNorm(size, var_hidden_size=size // 2)
            norm = RMSNorm(size)
            if case == "turned off":
                norm._forward_method = norm.forward_native
            return norm

        return make

    chosen = []
    monkeypatch.setattr(
        layer_graph,
        "rewrite",
        lambda module, *others: chosen.append(others[-1]("q_norm", "k_norm", "qkv_proj")),
    )
    for case in ("head", "another size", "a part of a head", "turned off"):
        module = SelfAttention(rotary(), attention(), norms(case))
        attention_steps.fuse(nn.ModuleDict({"layer": module}), config())
    module = SelfAttention(rotary(), attention(), RMSNorm)
    module.k_norm.variance_epsilon *= 2
    attention_steps.fuse(nn.ModuleDict({"layer": module}), config())
    module = SelfAttention(rotary(), attention(), RMSNorm)
    attention_steps.fuse(nn.ModuleDict({"layer": module}), config("native", "anvil"))
    module = SelfAttention(rotary(), attention(), RMSNorm)
    module.qkv_proj = nn.Identity()  # gives what it gets
    attention_steps.fuse(nn.ModuleDict({"layer": module}), config())
    assert chosen == [True, False, False, False, False, False, False]


# ------------------------------------------------------------------ the engine's models

# Module and class -> whether the norms of queries and keys are a part of it.
FIT = {
    ("llama", "LlamaAttention"): False,
    ("mistral", "MistralAttention"): False,
    ("mixtral", "MixtralAttention"): False,
    ("qwen2", "Qwen2Attention"): False,
    ("qwen3", "Qwen3Attention"): True,
    ("qwen3_moe", "Qwen3MoeAttention"): True,
    ("gemma2", "Gemma2Attention"): False,
    ("gemma3", "Gemma3Attention"): True,
    ("granite", "GraniteAttention"): False,
    ("glm4", "Glm4Attention"): False,
    ("gpt_oss", "OAIAttention"): False,
    ("lfm2", "Lfm2Attention"): True,
}
# They scale queries after they are turned, or norm them.
UNFIT = (("mistral", "MistralAttention"), ("llama4", "Llama4Attention"))
ATTRIBUTES = {"use_rope": True, "use_gqa": True}
SUBMODULES = (
    *("qkv_proj", "o_proj", "out_proj", "q_norm", "k_norm", "q_layernorm", "k_layernorm"),
    *("rotary_emb", "attn"),
)


def of_the_engine(file: str, name: str, **attributes: Any) -> nn.Module:
    """An attention module of the engine with nothing in it but names."""
    cls = getattr(importlib.import_module(f"vllm.model_executor.models.{file}"), name)
    module: nn.Module = object.__new__(cls)
    nn.Module.__init__(module)
    for attribute in ("q_size", "kv_size", "num_heads", "num_kv_heads", "head_dim"):
        setattr(module, attribute, 8)
    for attribute in ("do_llama_4_scaling", "qk_norm", "attn_temperature_tuning", "nope"):
        setattr(module, attribute, False)
    for attribute, value in (ATTRIBUTES | attributes).items():
        setattr(module, attribute, value)
    for submodule in SUBMODULES:
        setattr(module, submodule, nn.Identity())
    return module


def step(*arguments: Any) -> None:
    """Not called: the graph is made and not run."""


@pytest.mark.parametrize(("file", "name"), FIT)
def test_the_engines_models_have_a_place_for_it(file: str, name: str) -> None:
    asked: list[tuple[str, ...]] = []
    layer_graph.rewrite(
        of_the_engine(file, name),
        "attn",
        "rotary_emb",
        step,
        lambda *names: asked.append(names) or True,  # type: ignore[func-returns-value]
    )
    assert len(asked) == FIT[file, name]


@pytest.mark.parametrize(("file", "name"), UNFIT)
def test_the_engines_models_that_do_more_have_none(file: str, name: str) -> None:
    scale = {"do_llama_4_scaling": True, "_get_llama_4_attn_scale": torch.relu}
    module = of_the_engine(file, name, qk_norm=nn.Identity(), **scale)
    with pytest.raises(layer_graph.Unfit, match="something happens between"):
        layer_graph.rewrite(module, "attn", "rotary_emb", step, lambda *names: True)
