# SPDX-License-Identifier: Apache-2.0
"""Linear layers of a loaded model hold packed weights, and nobody but their product can tell."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from vllm_anvil.ops.packed_weight import PackedWeight
from vllm_anvil.plugin.seams import weight_packing
from vllm_anvil.plugin.seams.unquantized_gemm import unquantized_gemm

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tiny model in bfloat16, and one in float32 whose head is tied to its embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("models") / "tied"
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(tiny_model)
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).float().save_pretrained(path)
    for file in tiny_model.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return {"bfloat16": str(tiny_model), "tied": str(path)}


@pytest.fixture(scope="module")
def reports(
    models: dict[str, str], python: Any, at_once: Callable[..., Any]
) -> Callable[[str, str], dict[str, Any]]:
    """`reports(model, "1")`: as it is; `"0"`: with ANVIL_PACK_WEIGHTS=0."""

    def run(pack: str) -> dict[str, Any]:
        script = Path(__file__).with_name("packing_report.py")
        done = python.run(
            str(script),
            *models.values(),
            timeout=400,
            ANVIL_PACK_WEIGHTS=pack,
            **python.BESIDE_OTHERS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
        found = json.loads(lines[-1].removeprefix("REPORT "))
        return dict(zip(models, found, strict=True))

    started = at_once({pack: functools.partial(run, pack) for pack in ("1", "0")})
    return lambda model, pack: started[pack].result()[model]


LAYERS = [
    f"model.layers.{layer}.{name}.weight"
    for layer in (0, 1)
    for name in ("mlp.down_proj", "mlp.gate_up_proj", "self_attn.o_proj", "self_attn.qkv_proj")
]


def test_what_is_packed(reports: Callable[..., Any]) -> None:
    plain = reports("bfloat16", "1")
    assert plain["packed"] == ["lm_head.weight", *LAYERS] and not plain["tied"]
    assert "model.embed_tokens.weight" in plain["plain"]
    tied = reports("tied", "1")
    assert tied["packed"] == ["model.embed_tokens.weight", *LAYERS] and tied["tied"]
    for report in (plain, tied):
        assert report["packed after reload"] == report["packed"]
        assert report["tied after reload"] == report["tied"]
    for model in ("bfloat16", "tied"):
        assert reports(model, "0")["packed"] == []


@pytest.mark.parametrize("model", ["bfloat16", "tied"])
@pytest.mark.parametrize("moment", ["loaded", "reloaded", "changed"])
def test_weights_and_results_are_those_of_plain_weights(
    model: str, moment: str, reports: Callable[..., Any]
) -> None:
    packed, plain = reports(model, "1")[moment], reports(model, "0")[moment]
    assert packed["checksums"] == plain["checksums"]
    assert packed["tokens"] == plain["tokens"]
    distance = torch.tensor(packed["logprobs"]) - torch.tensor(plain["logprobs"])
    assert distance.abs().max() < 1e-3
    if moment != "loaded":
        assert packed["checksums"] != reports(model, "1")["loaded"]["checksums"]
        assert packed["logprobs"] != reports(model, "1")["loaded"]["logprobs"]


def layer(dtype: torch.dtype = torch.bfloat16, method: Any = None) -> nn.Module:
    """A linear layer of the engine, without the engine around it."""
    from vllm.model_executor.layers.linear import ReplicatedLinear

    made = ReplicatedLinear.__new__(ReplicatedLinear)
    nn.Module.__init__(made)
    made.quant_method = object.__new__(UnquantizedLinearMethod) if method is None else method
    weight = torch.randn(37, 21, generator=torch.Generator().manual_seed(2)).to(dtype)
    made.weight = nn.Parameter(weight.to("anvil"), requires_grad=False)
    return made


def test_no_more_than_one_weight_is_there_twice() -> None:
    model = nn.ModuleList(layer() for _ in range(40))
    big = torch.zeros(512, 1024, dtype=torch.bfloat16)
    for module in model:
        module.weight = nn.Parameter(big.to("anvil"), requires_grad=False)
    torch.anvil.synchronize()
    torch.anvil.reset_peak_memory_stats()
    before = torch.anvil.memory_allocated()
    assert weight_packing.pack(model) == 40
    torch.anvil.synchronize()
    assert torch.anvil.memory_allocated() - before < big.nbytes
    assert torch.anvil.max_memory_allocated() - before < 3 * big.nbytes


def test_layers_that_stay_plain(monkeypatch: Any) -> None:
    class Quantised:
        pass

    shared = layer()
    other = nn.Linear(21, 37, bias=False)
    other.weight = shared.weight
    model = nn.ModuleList([layer(method=Quantised()), shared, other, layer(torch.float64)])
    assert weight_packing.pack(model) == 0
    assert not any(isinstance(p, PackedWeight) for p in model.parameters())
    one = nn.ModuleList([layer()])
    monkeypatch.setenv("ANVIL_PACK_WEIGHTS", "0")
    assert weight_packing.pack(one) == 0
    monkeypatch.setenv("ANVIL_PACK_WEIGHTS", "1")
    assert weight_packing.pack(one) == 1 and weight_packing.pack(one) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_product_rounds_to_the_inputs_dtype(dtype: torch.dtype) -> None:
    made = layer(dtype)
    x = torch.randn(5, 21, generator=torch.Generator().manual_seed(3)).to(dtype).to("anvil")
    expected = x.cpu().double() @ made.weight.cpu().double().T
    weight_packing.pack(nn.ModuleList([made]))
    result = unquantized_gemm(made, x, made.weight)
    assert result.dtype == dtype
    assert torch.allclose(result.cpu().double(), expected, atol=1e-5, rtol=torch.finfo(dtype).eps)


def test_weights_that_attention_reads_stay_plain(monkeypatch: Any) -> None:
    """`kv_b_proj` of latent attention, by whose weight nothing is multiplied on its own."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kv_b_proj, self.o_proj = layer(), layer()

    monkeypatch.setattr(weight_packing, "MLAAttention", Attention)
    attention = Attention()
    assert weight_packing.pack(nn.ModuleList([attention])) == 1
    assert not isinstance(attention.kv_b_proj.weight, PackedWeight)
    assert isinstance(attention.o_proj.weight, PackedWeight)
