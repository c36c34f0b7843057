# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own, and the reference they are compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent

QUESTIONS = [
    "What is the capital of France?",
    "Explain photosynthesis in two sentences.",
    "Write a haiku about the sea.",
    "List three prime numbers greater than ten.",
    "Who wrote Romeo and Juliet?",
    "How do airplanes stay in the air?",
    "Translate 'good morning' into Spanish.",
    "What is the difference between a list and a tuple in Python?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Summarise the plot of Cinderella.",
    "What is 17 multiplied by 3?",
    "Name a famous painter and one of their works.",
    "How does a refrigerator work?",
    "What are the primary colours?",
    "Describe a sunset over mountains.",
    "What causes earthquakes?",
    "Tell me a joke about computers.",
    "How many continents are there?",
    "What should I pack for a week of hiking?",
]
NEW_TOKENS = 32

ProgramRun = Callable[..., dict[str, Any]]
EngineRun = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def program_run(tmp_path_factory: pytest.TempPathFactory) -> ProgramRun:
    """`run(script, job, python=..., **environment)` -> the result of a program beside this file
    that reads JOB.json and writes RESULT.json."""

    def run(
        script: str, job: dict[str, Any], python: str = sys.executable, **environment: str
    ) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("program")
        files = folder / "job.json", folder / "result.json"
        files[0].write_text(json.dumps(job))
        done = subprocess.run(
            [python, str(HERE / script), *map(str, files)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode != 0:
            said = f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
            pytest.fail(f"{script} failed:\n{said}", pytrace=False)
        return json.loads(files[1].read_text())

    return run


@pytest.fixture(scope="session")
def engine_run(program_run: ProgramRun) -> EngineRun:
    """`run(engine, requests, python=..., batches=..., **environment)` -> the engine's report."""

    def run(
        engine: dict[str, Any],
        requests: list[dict[str, Any]],
        python: str = sys.executable,
        batches: list[list[int]] | None = None,
        **environment: str,
    ) -> dict[str, Any]:
        batches = batches or [list(range(len(requests)))]
        job = {"engine": engine, "requests": requests, "batches": batches}
        return program_run("engine_run.py", job, python, **environment)

    return run


@dataclass
class Reference:
    """What transformers computes on the CPU.

    Attributes:
        prompts: token ids of each chat prompt.
        tokens: greedy continuation of each, NEW_TOKENS long, in float32.
        logprobs: for float32 and bfloat16, the log-probability of each of `tokens`, teacher-forced.
        gaps: float32 difference between the two most probable tokens before each of `tokens`.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    logprobs: dict[torch.dtype, list[torch.Tensor]]
    gaps: list[torch.Tensor]


def _distributions(
    model: Any, prompts: list[list[int]], tokens: list[list[int]]
) -> list[torch.Tensor]:
    """[NEW_TOKENS, vocabulary] log-probabilities before each continued token, float32."""
    result = []
    for prompt, continuation in zip(prompts, tokens, strict=True):
        logits = model(torch.tensor([prompt + continuation])).logits[0].float()
        result.append(logits[len(prompt) - 1 : -1].log_softmax(-1))
    return result


@pytest.fixture(scope="session")
def chat_prompts(smollm2: Path) -> list[list[int]]:
    """QUESTIONS as token ids, in the model's chat format."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


@pytest.fixture(scope="session")
def reference(smollm2: Path, chat_prompts: list[list[int]]) -> Reference:
    from transformers import AutoModelForCausalLM

    prompts = chat_prompts
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
        tokens = []
        for prompt in prompts:
            output = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
            )
            tokens.append(output[0, len(prompt) :].tolist())
        exact = _distributions(model, prompts, tokens)
        half = _distributions(model.to(torch.bfloat16), prompts, tokens)

    def chosen(distributions: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            d.gather(1, torch.tensor(t).unsqueeze(1)).squeeze(1)
            for d, t in zip(distributions, tokens, strict=True)
        ]

    gaps = []
    for distribution in exact:
        best = distribution.topk(2).values
        gaps.append(best[:, 0] - best[:, 1])
    return Reference(
        prompts, tokens, {torch.float32: chosen(exact), torch.bfloat16: chosen(half)}, gaps
    )
