# SPDX-License-Identifier: Apache-2.0
"""Floors: operations against those that torch counts in a forward pass, bytes against a model's
own parameters, attention against masks that are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_anvil.bench.model_cost import Ceilings, Cost, ModelCost
from vllm_anvil.bench.scenario import Kind, Scenario
from vllm_anvil.bench.served_model import SHAPES, ServedModel

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
COST = ModelCost.from_config({"model_type": "llama", **SIZES})


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def decode(batch: int, prompt: int, tokens: int) -> Scenario:
    return Scenario("one", Kind.DECODE, batch, prompt, tokens)


def matrix_operations(model: LlamaForCausalLM, tokens: int, logits: int) -> int:
    """Operations of a forward pass's linear layers, with logits for the last so many tokens."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(torch.ones(1, tokens, dtype=torch.long), logits_to_keep=logits)
    counts = counter.get_flop_counts()["Global"]
    return sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))


def test_weights_are_those_of_the_linear_layers(model: LlamaForCausalLM) -> None:
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert COST.weights == sum(m.weight.numel() for m in linear)


@pytest.mark.parametrize("length", [1, 7, 33])
def test_operations_of_a_prefill_are_those_that_torch_counts(
    model: LlamaForCausalLM, length: int
) -> None:
    cost = COST.cost(Scenario("one", Kind.PREFILL, 1, length, 1), "float32")
    assert cost is not None
    pairs = int(torch.ones(length, length).tril().sum())
    attention = SIZES["num_hidden_layers"] * 2 * 2 * pairs * 6 * 16
    assert cost.operations == matrix_operations(model, length, 1) + attention


def test_operations_and_bytes_of_a_decode_step(model: LlamaForCausalLM) -> None:
    cost = COST.cost(decode(5, 20, 8), "bfloat16")
    assert cost is not None
    one_token, context = matrix_operations(model, 1, 1), 24
    assert cost.operations == 5 * (one_token + 3 * 2 * 2 * context * 6 * 16)
    cache = 5 * context * 3 * 2 * 2 * 16
    assert cost.read_bytes == 2 * (COST.weights + cache)


@pytest.mark.parametrize("window", [1, 5, 40])
def test_windows_bound_what_is_attended_to(window: int) -> None:
    config = {"model_type": "mistral", **SIZES, "sliding_window": window}
    windowed, length = ModelCost.from_config(config), 33
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    pairs = int(((distance >= 0) & (distance < window)).sum())
    prefill = Scenario("one", Kind.PREFILL, 2, length, 1)
    found, full = windowed.cost(prefill, "float32"), COST.cost(prefill, "float32")
    assert found is not None and full is not None
    every = length * (length + 1) // 2
    assert full.operations - found.operations == 2 * 3 * 4 * (every - pairs) * 6 * 16
    step, all_of_it = (
        windowed.cost(decode(1, 60, 8), "float32"),
        COST.cost(decode(1, 60, 8), "float32"),
    )
    assert step is not None and all_of_it is not None
    assert all_of_it.read_bytes - step.read_bytes == 4 * (64 - window) * 3 * 2 * 2 * 16


def test_layers_of_two_kinds() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    base = {**SIZES, "sliding_window": 4}
    qwen = ModelCost.from_config({"model_type": "qwen3", **base, "layer_types": kinds})
    assert qwen.windows == (4, None, 4)
    assert ModelCost.from_config({"model_type": "gemma2", **base}).windows == (4, None, 4)
    off = {"model_type": "qwen2", **base, "use_sliding_window": False, "layer_types": kinds}
    assert ModelCost.from_config(off).windows == (None, None, None)


def test_the_longer_time_is_the_floor() -> None:
    cost, slow_memory = Cost(100.0, 1000.0), Ceilings(10.0, 1000.0)
    assert (cost.seconds(slow_memory), cost.bound(slow_memory)) == (10.0, "reading")
    slow_cores = Ceilings(100.0, 10.0)
    assert (cost.seconds(slow_cores), cost.bound(slow_cores)) == (100.0, "arithmetic")


def test_a_model_of_another_make_has_no_floor() -> None:
    with pytest.raises(ValueError, match="no floor is known for models of type mixtral: there is"):
        ModelCost.from_config({"model_type": "mixtral", **SIZES})


def test_shapes_are_those_of_the_models(smollm2: Path) -> None:
    """The one whose checkpoint is here, and all of them as transformers reads them."""
    real = ModelCost.from_config(json.loads((smollm2 / "config.json").read_text()))
    assert ModelCost.from_config(SHAPES["smollm2-135m"].config()) == real
    assert real.weights == 30 * 576 * ((9 + 3) * 2 * 64 + 3 * 1536) + 576 * 49152
    billions = {name: ModelCost.from_config(s.config()).weights / 1e9 for name, s in SHAPES.items()}
    expected = {
        "smollm2-360m": 0.36,
        "qwen3-0.6b": 0.60,
        "llama-3.2-1b": 1.24,
        "llama-3.2-3b": 3.21,
    }
    assert {name: billions[name] for name in expected} == pytest.approx(expected, rel=0.01)


def test_the_engine_is_given_the_same_cache_on_both_sides(tmp_path: Path) -> None:
    model = ServedModel.from_shape("smollm2-135m", tmp_path)
    scenarios = [decode(8, 2000, 48), Scenario("p", Kind.PREFILL, 4, 1500, 1)]
    arguments = model.engine_arguments(scenarios, "bfloat16", prefix_caching=False)
    assert arguments["max_model_len"] == 2048
    assert arguments["kv_cache_memory_bytes"] >= 8 * 2048 * 30 * 2 * 3 * 64 * 2
    assert arguments["load_format"] == "dummy" and arguments["skip_tokenizer_init"]
    with pytest.raises(ValueError, match="smollm2-135m has 8192 positions, and a scenario needs"):
        model.engine_arguments([decode(1, 8192, 8)], "bfloat16", prefix_caching=False)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no config.json in it"):
        ServedModel.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is no JSON"):
        ServedModel.from_folder(tmp_path)
    with pytest.raises(ValueError, match="there is no shape 'gpt-5'; there are smollm2-135m, "):
        ServedModel.from_shape("gpt-5", tmp_path)
