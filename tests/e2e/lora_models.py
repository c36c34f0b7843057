# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama in float32, adapters for it in PEFT's format, and the Llama with an adapter merged
into its weights by hand, for transformers.

The vocabulary is no multiple of what the engine pads it to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 515
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PERCEPTRON = ("gate_proj", "up_proj", "down_proj")
ALL = (*ATTENTION, *PERCEPTRON)


@dataclass(frozen=True)
class Adapter:
    """What an adapter is made of.

    Attributes:
        rank, alpha: its products are multiplied by alpha / rank.
        targets: names of modules.
        seed: of its random weights.
    """

    rank: int
    targets: tuple[str, ...] = ALL
    alpha: float = 32.0
    seed: int = 0


ADAPTERS = {
    "rank8": Adapter(8, seed=1),
    "rank16": Adapter(16, ATTENTION, seed=2),
    "rank64": Adapter(64, seed=3),
    "rank256": Adapter(256, PERCEPTRON, seed=4),
    # An odd rank, projections that share a layer with others, the embedding and the head.
    "rank5": Adapter(5, ("q_proj", "v_proj", "up_proj"), seed=5),
    "head": Adapter(8, ("lm_head", "embed_tokens", "o_proj"), seed=6),
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    # So that some tokens are much more probable than others.
    model.lm_head.weight.data.mul_(3)
    return model


def _factors(model: Any, adapter: Adapter) -> dict[str, tuple[Tensor, Tensor]]:
    """(A [rank, in], B [out, rank]) by module. Products are about as large as the module's own."""
    generator = torch.Generator().manual_seed(adapter.seed)
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in adapter.targets:
            continue
        out, depth = module.weight.shape
        if name.endswith("embed_tokens"):  # its products are rows that are looked up
            out, depth = depth, out
        size = (0.15 * adapter.rank**0.5 / adapter.alpha) ** 0.5
        a = torch.randn(adapter.rank, depth, generator=generator) * size
        b = torch.randn(out, adapter.rank, generator=generator) * size
        found[name] = (a, b)
    return found


def save_adapter(folder: Path, adapter: Adapter, **config: Any) -> None:
    """As PEFT writes it; `config` replaces fields of adapter_config.json."""
    weights = {}
    for name, (a, b) in _factors(llama(), adapter).items():
        of = ("lora_embedding_A", "lora_embedding_B") if "embed" in name else None
        first, second = of or ("lora_A.weight", "lora_B.weight")
        weights[f"base_model.model.{name}.{first}"] = a
        weights[f"base_model.model.{name}.{second}"] = b
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.targets),
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields | config))


@torch.no_grad()
def merged(adapter: Adapter | None) -> Any:
    """The Llama, with scale * B A added to each weight in float64."""
    model = llama()
    if adapter is None:
        return model.eval()
    modules = dict(model.named_modules())
    for name, (a, b) in _factors(model, adapter).items():
        weight = modules[name].weight
        added = adapter.alpha / adapter.rank * (b.double() @ a.double())
        added = added.T if name.endswith("embed_tokens") else added
        weight.copy_((weight.double() + added).float())
    return model.eval()
