# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama, and models that draft for it, in float32: a smaller Llama, an EAGLE and an EAGLE-3
head. Their vocabulary is that of bytes.

The EAGLE head has the Llama's own layers, and is fed what they are fed. It has no norm before the
first of them and none after the last. The Llama's embeddings have length 1 per element and its
norms no weights, so that these make no difference to which token is the most probable: but for a
first token that it does not see, it drafts what the Llama says.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .attention_models import VOCABULARY, save_tokenizer

HIDDEN = 64
LAYERS = 2
# Of the EAGLE-3 head, which knows every other token only.
DRAFT_VOCABULARY = VOCABULARY // 2


def _config(layers: int = LAYERS) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )


def _llama(seed: int, layers: int = LAYERS) -> Any:
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(layers)).to(torch.float32)
    embedding = model.model.embed_tokens.weight.data
    embedding.div_(embedding.square().mean(1, keepdim=True).sqrt())
    # So that some tokens are much more probable than others.
    model.lm_head.weight.data.mul_(3)
    return model


def make_target(folder: Path) -> None:
    _llama(0).save_pretrained(folder)
    save_tokenizer(folder)


def make_draft(folder: Path) -> None:
    """The Llama with noise on its weights: it drafts what that says often, and not always."""
    model = _llama(0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_(noise * parameter.data.std() * 0.05)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def _save_head(folder: Path, weights: dict[str, torch.Tensor], **config: Any) -> None:
    folder.mkdir()
    save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config().to_dict() | config))


def make_eagle(folder: Path) -> None:
    weights = {
        name.removeprefix("model."): weight
        for name, weight in _llama(0).state_dict().items()
        if ".layers." in name and "layers.0.input_layernorm" not in name
    }
    # Of an embedding and a hidden state side by side, the embedding.
    weights["fc.weight"] = torch.eye(HIDDEN, 2 * HIDDEN)
    _save_head(folder, weights, architectures=["LlamaForCausalLM"])


def make_eagle3(folder: Path) -> None:
    """With random weights."""
    generator = torch.Generator().manual_seed(2)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * 0.15

    attention, groups = 64, 32
    weights = {
        "fc.weight": random(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": random(attention, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": random(groups, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": random(groups, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": random(HIDDEN, attention),
        "midlayer.mlp.gate_proj.weight": random(128, HIDDEN),
        "midlayer.mlp.up_proj.weight": random(128, HIDDEN),
        "midlayer.mlp.down_proj.weight": random(HIDDEN, 128),
        "lm_head.weight": random(DRAFT_VOCABULARY, HIDDEN),
        # What to add to a token of the head's to get the Llama's.
        "d2t": torch.arange(DRAFT_VOCABULARY),
    }
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"midlayer.{norm}.weight"] = torch.ones(HIDDEN)
    weights["norm.weight"] = torch.ones(HIDDEN)
    _save_head(
        folder,
        weights,
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        draft_vocab_size=DRAFT_VOCABULARY,
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
    )


def log_probabilities(
    folder: Path,
    prompts: list[list[int]],
    continuations: list[list[int]],
    weights: torch.dtype = torch.float64,
) -> list[torch.Tensor]:
    """[tokens, VOCABULARY] of each continuation, float64, before each of its tokens, with weights
    rounded to a dtype."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=weights).to(torch.float64)
    # One batch for each length, rather than a padded one.
    by_length: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (prompt, tokens) in enumerate(zip(prompts, continuations, strict=True)):
        by_length[len(prompt), len(tokens)].append(number)
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for (start, _), numbers in by_length.items():
            batch = torch.tensor([prompts[i] + continuations[i] for i in numbers])
            logits = model(batch).logits[:, start - 1 : -1]
            found |= zip(numbers, logits.log_softmax(-1), strict=True)
    return [found[number] for number in range(len(prompts))]
