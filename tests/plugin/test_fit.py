# SPDX-License-Identifier: Apache-2.0
"""The lower bound that refuses a model before any process is started is a lower bound."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from vllm_anvil.plugin import fit

pytestmark = pytest.mark.usefixtures("platform")


def configure(model: Path, **options: Any) -> VllmConfig:
    return EngineArgs(model=str(model), **options).create_engine_config()


def device_of(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    properties = SimpleNamespace(total_memory=memory)
    monkeypatch.setattr(fit.anvil, "get_device_properties", lambda index=0: properties)


def test_weights_are_those_of_the_checkpoint(tiny_model: Path) -> None:
    stored = load_file(tiny_model / "model.safetensors")
    elements = sum(tensor.numel() for tensor in stored.values())
    assert fit.weight_bytes(configure(tiny_model)) == 2 * elements
    # Loaded in another dtype than stored.
    assert fit.weight_bytes(configure(tiny_model, dtype="float32")) == 4 * elements


def test_weights_that_the_engine_may_leave_out(tiny_model: Path) -> None:
    model = configure(tiny_model).model_config
    text = SimpleNamespace(num_hidden_layers=2, tie_word_embeddings=True)
    tied = SimpleNamespace(hf_text_config=text)
    left_out = [
        "lm_head.weight",
        "model.layers.2.mlp.up_proj.weight",  # layers of a draft model behind the last one
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ]
    kept = ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    assert [fit._is_left_out(name, tied) for name in left_out] == [True] * 3  # type: ignore[arg-type]
    assert [fit._is_left_out(name, tied) for name in kept] == [False] * 3  # type: ignore[arg-type]
    assert not fit._is_left_out("lm_head.weight", model)


@pytest.mark.parametrize(
    "options", [{"load_format": "dummy"}, {"load_format": "pt"}], ids=lambda o: o["load_format"]
)
def test_weights_that_cannot_be_told(tiny_model: Path, options: dict[str, Any]) -> None:
    assert fit.weight_bytes(configure(tiny_model, **options)) == 0


def test_cache_of_one_token(tiny_model: Path) -> None:
    # Keys and values of 2 layers, 2 heads of 16, 2 bytes each.
    assert fit.cache_bytes_per_token(configure(tiny_model)) == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_memory_bytes": 1 << 20},
        {"num_gpu_blocks_override": 8},
        {"hf_overrides": {"sliding_window": 64}},
        {"hf_overrides": {"layer_types": ["full_attention", "sliding_attention"]}},
    ],
    ids=str,
)
def test_cache_that_cannot_be_told(tiny_model: Path, options: dict[str, Any]) -> None:
    assert fit.cache_bytes_per_token(configure(tiny_model, **options)) == 0


def test_refused_where_the_weights_do_not_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tiny_model)
    device_of(monkeypatch, fit.weight_bytes(config))
    with pytest.raises(ValueError, match=r"The weights of .* alone take .* ANVIL_DEVICE_MEMORY"):
        configure(tiny_model)


def test_refused_where_the_longest_request_does_not_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tiny_model)
    needed = fit.weight_bytes(config) + 512 * fit.cache_bytes_per_token(config)
    device_of(monkeypatch, needed)
    with pytest.raises(ValueError, match=r"max_model_len=512 .* --max-model-len to at most") as e:
        configure(tiny_model)
    fitting = int(str(e.value).split("--max-model-len to at most ")[1].split(",")[0])
    assert 0 < fitting < 512
    # What it suggests is accepted here; the engine then profiles exactly.
    configure(tiny_model, max_model_len=fitting)
    # On the edge it is accepted as well: this is a lower bound.
    device_of(monkeypatch, int(needed / 0.92) + 1)
    configure(tiny_model)


def test_checkpoint_in_two_layouts_is_counted_once(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for name in ("model.safetensors", "consolidated.safetensors"):
        save_file({"a.weight": torch.zeros(3, 4)}, tmp_path / name)
    assert list(fit._tensors(tmp_path)) == [("a.weight", [3, 4])]
