# SPDX-License-Identifier: Apache-2.0
"""A model with multi-head latent attention: in chunks, over cached prefixes and in mixed batches,
it says what transformers computes, which expands every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import EngineRun

VOCABULARY, NEW_TOKENS = 320, 10
# A request with more query tokens than this in a step attends to expanded keys, see
# anvil_attention.mla_metadata.least_query_worth_expanding.
THRESHOLD = 49


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-V2 of 3 layers without experts, with random float32 weights."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    path = tmp_path_factory.mktemp("models") / "tiny-deepseek"
    torch.manual_seed(0)
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=64,
        q_lora_rank=48,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        head_dim=16,
        v_head_dim=24,
        n_routed_experts=0,
        first_k_dense_replace=3,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    DeepseekV2ForCausalLM(config).save_pretrained(path)
    return path


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(2, VOCABULARY, (250,), generator=generator).tolist()
    return [text, [*text[:200], 5, 6, 7], text[10:17], text[40:120], text[:240], [9]]


def ask(run: EngineRun, model: Path, dtype: str, **environment: str) -> dict[str, Any]:
    params = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    return run(
        {
            "model": str(model),
            "dtype": dtype,
            "skip_tokenizer_init": True,
            "max_model_len": 300,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 2 * THRESHOLD,
        },
        [{"token_ids": prompt, "params": {**params, "detokenize": False}} for prompt in prompts()],
        batches=[[0, 1, 2, 3], [4, 5], [0, 3, 1, 2]],
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_PLUGINS="anvil",
        **environment,
    )


@pytest.mark.parametrize(
    ("dtype", "environment", "allowed"),
    [
        ("float32", {}, 1e-4),
        pytest.param("bfloat16", {}, 0.1, marks=pytest.mark.slow),
        pytest.param("float32", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, 1e-4, marks=pytest.mark.slow),
        pytest.param("float32", {"ANVIL_ATTENTION_IMPL": "triton"}, 1e-4, marks=pytest.mark.slow),
    ],
    ids=["float32", "bfloat16", "runner-v1", "triton"],
)
def test_transformers_agrees(
    engine_run: EngineRun, model: Path, dtype: str, environment: dict[str, str], allowed: float
) -> None:
    from transformers import AutoModelForCausalLM

    report = ask(engine_run, model, dtype, **environment)
    assert report["backends"] == ["ANVIL_MLA"]
    # Prefixes were cached: among them parts of a block of a prompt, and all but its last token.
    cached = [output["cached"] for output in report["outputs"]]
    assert cached[4] == 224
    assert cached[6] == 240
    with torch.inference_mode():
        # With the weights that the engine has; all else in float32.
        theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        theirs.to(getattr(torch, dtype)).float()
        order = [prompts()[number] for number in (0, 1, 2, 3, 4, 5, 0, 3, 1, 2)]
        for prompt, output in zip(order, report["outputs"], strict=True):
            tokens = torch.tensor(output["token_ids"])
            logits = theirs(torch.tensor([prompt + output["token_ids"]])).logits[0]
            expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            chosen = expected.gather(1, tokens[:, None]).squeeze(1)
            if dtype == "float32":
                assert tokens.tolist() == expected.argmax(-1).tolist()
            assert (expected.max(-1).values - chosen).max() < allowed
            said = output["completions"][0]["logprobs"]
            actual = torch.tensor(
                [one[str(t)][0] for one, t in zip(said, output["token_ids"], strict=True)]
            )
            assert (actual - chosen).abs().max() < allowed
