# SPDX-License-Identifier: Apache-2.0
"""Tiny mixtures of experts with random float32 weights, and what transformers says of a text.

Weights are large enough for experts to matter and for tokens to differ, and small enough for a
single rounding not to change which experts a token goes through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
QWEN = {"decoder_sparse_step": 1, "intermediate_size": 96}


def make(kind: str, folder: Path) -> None:
    """Writes a model of the kind into a folder that the engine serves."""
    import transformers

    torch.manual_seed(0)
    if kind == "mixtral":  # softmax, two of eight, renormalised
        config = transformers.MixtralConfig(
            **SIZES,
            intermediate_size=96,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        )
    elif kind == "qwen2_moe":  # a shared expert with a gate; weights as they are; odd sizes
        config = transformers.Qwen2MoeConfig(
            **SIZES,
            **QWEN,
            moe_intermediate_size=44,
            shared_expert_intermediate_size=72,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=False,
        )
    elif kind == "qwen3_moe":  # a layer without experts among those with
        config = transformers.Qwen3MoeConfig(
            **SIZES,
            **QWEN,
            head_dim=16,
            moe_intermediate_size=48,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        )
    else:  # experts in groups, of which some are chosen; shared experts; latent attention
        assert kind == "deepseek_v2"
        config = transformers.DeepseekV2Config(
            **(SIZES | {"num_key_value_heads": 4}),
            intermediate_size=128,
            kv_lora_rank=64,
            q_lora_rank=48,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            head_dim=16,
            v_head_dim=24,
            n_routed_experts=8,
            n_shared_experts=1,
            num_experts_per_tok=3,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            moe_intermediate_size=48,
            routed_scaling_factor=1.5,
            first_k_dense_replace=1,
        )
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(
        folder
    )


def prompts() -> list[list[int]]:
    """Longer than a step, with a prefix in common, of a few tokens and of one."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(2, VOCABULARY, (150,), generator=generator).tolist()
    return [text, [*text[:96], 5, 6, 7], text[10:17], text[40:80], [9]]


def distributions(
    folder: Path, prompts: list[list[int]], continuations: list[list[int]]
) -> list[torch.Tensor]:
    """[tokens, vocabulary] log-probabilities before each token of the continuations."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for prompt, tokens in zip(prompts, continuations, strict=True):
            logits = model(torch.tensor([prompt + tokens])).logits[0]
            found.append(logits.log_softmax(-1)[len(prompt) - 1 : -1])
    return found
