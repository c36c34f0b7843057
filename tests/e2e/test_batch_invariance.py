# SPDX-License-Identifier: Apache-2.0
"""VLLM_BATCH_INVARIANT=1: requests alone and among others give the same bits.

`vllm-anvil check-invariance` draws, serves and compares. The whole of it is slow; the suite's share
is a batch with logits processors here, and a small model in tests/cli/test_check_invariance.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_anvil.bench import side
from vllm_anvil.bench.invariance import Check
from vllm_anvil.bench.invariance_requests import Ask, draw_targets

from . import expert_models
from .attention_models import make_encoder, make_hybrid

VOCABULARY, LONGEST, TOKENS = 250, 60, 16
PROCESSORS = ("AllowedTokens", "NoRepeatNGram", "MinimumPhraseLength")


def make_decoder(kind: str, folder: Path) -> None:
    """A small random Llama or Qwen 3, whose sizes are no multiples of what kernels like."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=997,
        hidden_size=102,  # of 6 heads, which LlamaConfig wants to divide it
        intermediate_size=202,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)


MODELS: dict[str, Callable[[Path], None]] = {
    "llama": lambda folder: make_decoder("Llama", folder),
    "qwen3": lambda folder: make_decoder("Qwen3", folder),
    "gemma2": make_hybrid,
    "mixtral": lambda folder: expert_models.make("mixtral", folder),
}


def checked(model: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """What `vllm-anvil check-invariance` found."""
    program = [sys.executable, "-m", "vllm_anvil.cli", "check-invariance", "--json", "-"]
    done = subprocess.run(
        [*program, "--model", str(model), *arguments],
        env={**os.environ, "ANVIL_DEVICE_MEMORY": "2GiB", **environment},
        capture_output=True,
        text=True,
        timeout=7200,
    )
    assert done.returncode in (0, 1), done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    print({way["way"]: (way["compared"], len(way["differing"])) for way in found["ways"]})
    assert done.returncode == 0, found["first"]
    return found


def test_logits_processors_that_come_with_anvil(tiny_llama: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    targets = []
    for ask in draw_targets("0", VOCABULARY, LONGEST, TOKENS):
        extra: dict[str, Any] = {}
        if rng.random() < 0.5:
            extra["allowed_tokens"] = [f"{rng.randrange(100)}-{VOCABULARY - 1}", 3]
        if rng.random() < 0.5:
            extra["no_repeat_ngram_size"] = rng.randint(1, 3)
        if rng.random() < 0.5:
            extra |= {"min_phrase_length": 4, "phrase_end_tokens": rng.sample(range(200), 60)}
        targets.append(Ask(ask.prompt, {**ask.params, "extra_args": extra}))
    anvil = side.anvil()
    environment = {
        **anvil.environment,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_BATCH_INVARIANT": "1",
        "ANVIL_DEVICE_MEMORY": "1GiB",
    }
    check = Check(
        folder=tmp_path,
        side=dataclasses.replace(anvil, environment=environment),
        engine={
            "model": str(tiny_llama),
            "dtype": "bfloat16",
            "max_model_len": 128,
            "max_num_seqs": 24,
            "num_gpu_blocks_override": 24 * 8 + 1,
            "block_size": 16,
            "skip_tokenizer_init": True,
            "logits_processors": [f"vllm_anvil.logits_processors:{name}" for name in PROCESSORS],
        },
        targets=targets,
        vocabulary=VOCABULARY,
        longest=LONGEST,
        tokens=TOKENS,
        largest=24,
        timeout_s=600.0,
        seed="0",
    )
    (way,) = check.ways(["graphs"], 4, 1)
    alone, outcome = check.serve(way, None, lambda _: None)
    assert outcome.differing == [] and outcome.compared >= 12
    for ask, output in zip(targets, alone, strict=True):
        allowed = ask.params["extra_args"].get("allowed_tokens")
        if allowed is not None:
            first = int(allowed[0].partition("-")[0])
            assert all(first <= token < VOCABULARY or token == 3 for token in output["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", MODELS)
def test_200_batches(kind: str, dtype: str, tmp_path: Path) -> None:
    MODELS[kind](tmp_path)
    found = checked(tmp_path, "--dtype", dtype, "--combinations", "200")
    assert sum(way["compared"] for way in found["ways"]) > 3000


@pytest.mark.slow
def test_200_batches_of_a_real_model(smollm2: Path) -> None:
    found = checked(smollm2, "--combinations", "200")
    assert {way["way"] for way in found["ways"]} >= {"graphs", "chunks", "eager", "pre-emption"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_over_two_devices(kind: str, tmp_path: Path) -> None:
    MODELS[kind](tmp_path)
    several = {"ANVIL_DEVICES": "2", "ANVIL_SHARE_CORES": "1"}
    checked(tmp_path, "--way", "tensor-parallel", "--combinations", "80", **several)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--kv-cache-dtype", "fp8_e4m3"), ()], ids=["fp8", "plain"])
def test_other_memory(options: tuple[str, ...], tmp_path: Path) -> None:
    """A quantised cache, and weights that are not packed."""
    MODELS["llama"](tmp_path)
    unpacked = {} if options else {"ANVIL_PACK_WEIGHTS": "0"}
    ways = ("--way", "graphs", "--way", "chunks", "--way", "pre-emption")
    checked(tmp_path, "--dtype", "bfloat16", "--combinations", "40", *ways, *options, **unpacked)


EMBED = """
import json, random, sys
from vllm import LLM
rng = random.Random(0)
texts = [{"prompt_token_ids": [rng.randrange(5, 250) for _ in range(rng.randint(1, 100))]}
         for _ in range(40)]
llm = LLM(sys.argv[1], runner="pooling", dtype=sys.argv[2], max_model_len=128, max_num_seqs=64)
embed = lambda some: [one.outputs.embedding for one in llm.embed(some, use_tqdm=False)]
alone = [embed([text])[0] for text in texts]
differ = 0
for size in range(2, 40):
    chosen = rng.sample(range(40), size)
    found = embed([texts[number] for number in chosen])
    differ += sum(one != alone[number] for one, number in zip(found, chosen))
print(json.dumps(differ))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("real", [True, False])
def test_embeddings(real: bool, dtype: str, minilm: Path, tmp_path: Path) -> None:
    if not real:
        make_encoder(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", EMBED, str(minilm if real else tmp_path), dtype],
        env={**os.environ, "VLLM_BATCH_INVARIANT": "1", "ANVIL_DEVICE_MEMORY": "2GiB"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == 0
