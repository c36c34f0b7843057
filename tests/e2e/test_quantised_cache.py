# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M with a float8 KV cache, against transformers with keys and values rounded alike.

Rounding to four bits amplifies what is below it: a last bit of float32 decides which way an element
is rounded, and so changes those of the next layers. How far that leads is measured, by weights that
differ by a millionth, and is what the engine may differ by.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import NEW_TOKENS, EngineRun, Reference

PROMPTS = 8


@dataclass
class Rounded:
    """Log-probabilities [PROMPTS, NEW_TOKENS, vocabulary] before each of the reference's tokens,
    with keys and values in float8_e4m3fn and everything else in float32.

    Attributes:
        nearby: the same with weights that differ by a millionth.
    """

    exact: torch.Tensor
    nearby: torch.Tensor


@pytest.fixture(scope="module")
def rounded(smollm2: Path, reference: Reference) -> Rounded:
    from transformers import AutoModelForCausalLM, DynamicCache

    class RoundedCache(DynamicCache):
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            stored = [
                t.clamp(-448, 448).to(torch.float8_e4m3fn).float()
                for t in (key_states, value_states)
            ]
            return super().update(*stored, *args, **kwargs)

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)

    def distributions() -> torch.Tensor:
        results = []
        for prompt, tokens in zip(reference.prompts[:PROMPTS], reference.tokens, strict=False):
            given = torch.tensor([prompt + tokens])
            logits = model(given, past_key_values=RoundedCache(), use_cache=True).logits[0]
            results.append(logits[len(prompt) - 1 : -1].log_softmax(-1))
        return torch.stack(results)

    with torch.inference_mode():
        exact = distributions()
        weight = model.model.embed_tokens.weight
        random = torch.Generator().manual_seed(0)
        weight.mul_(1 + 1e-6 * torch.randn(weight.shape, generator=random))
        return Rounded(exact, distributions())


@pytest.fixture(scope="module")
def outputs(smollm2: Path, engine_run: EngineRun, reference: Reference) -> list[dict[str, Any]]:
    """Greedy generation for each prompt, then the reference's tokens teacher-forced."""
    greedy = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "min_tokens": NEW_TOKENS}
    forced = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1}
    prompts = reference.prompts[:PROMPTS]
    requests = [{"token_ids": prompt, "params": greedy} for prompt in prompts]
    requests += [
        {"token_ids": prompt + tokens, "params": forced}
        for prompt, tokens in zip(prompts, reference.tokens, strict=False)
    ]
    engine = {
        "model": str(smollm2),
        "dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "max_model_len": 1024,
        "max_num_seqs": 32,
    }
    result = engine_run(engine, requests)
    assert result["device_type"] == "anvil"
    return result["outputs"]


def chosen(distributions: torch.Tensor, reference: Reference) -> torch.Tensor:
    """[PROMPTS, NEW_TOKENS] log-probabilities of the reference's tokens."""
    tokens = torch.tensor(reference.tokens[:PROMPTS]).unsqueeze(-1)
    return distributions.gather(-1, tokens).squeeze(-1)


def test_log_probabilities_are_those_of_rounded_keys_and_values(
    outputs: list[dict[str, Any]], reference: Reference, rounded: Rounded
) -> None:
    ours = torch.tensor([o["prompt_logprobs"][-NEW_TOKENS:] for o in outputs[PROMPTS:]])
    expected = chosen(rounded.exact, reference)
    amplified = (chosen(rounded.nearby, reference) - expected).abs()
    unrounded = torch.stack(reference.logprobs[torch.float32][:PROMPTS])
    rounding = (unrounded - expected).abs()
    off = (ours - expected).abs()
    print(
        f"mean and largest distance: the engine's {off.mean():.4f} {off.max():.3f}; "
        f"of nearby weights {amplified.mean():.4f} {amplified.max():.3f}; "
        f"of a cache that is not rounded {rounding.mean():.4f} {rounding.max():.3f}"
    )
    # Another cache than that of the definition would be further off than none.
    assert rounding.mean() > 2 * amplified.mean()
    assert off.mean() < 1.5 * amplified.mean()


def test_greedy_tokens_are_the_most_probable_ones(
    outputs: list[dict[str, Any]], reference: Reference, rounded: Rounded
) -> None:
    """Up to where they part from the reference's tokens, behind which nothing is known."""
    margin = 2 * (rounded.nearby - rounded.exact).abs().amax(-1).max()
    checked = 0
    for number, output in enumerate(outputs[:PROMPTS]):
        pairs = zip(output["token_ids"], reference.tokens[number], strict=True)
        for step, (token, expected) in enumerate(pairs):
            before = rounded.exact[number, step]
            assert before.max() - before[token] <= margin, (number, step)
            checked += 1
            if token != expected:
                break
    assert checked > PROMPTS
