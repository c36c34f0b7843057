# SPDX-License-Identifier: Apache-2.0
"""Hybrid KV groups, encoders and cross-attention answer what transformers computes in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from . import attention_models as models

HERE = Path(__file__).parent
NEW_TOKENS = 24
# Shorter and longer than a window and than a step of the engine.
PROMPTS = [[(i * 7 + n) % 190 + 4 for i in range(n)] for n in (5, 70, 33, 40)]
SOUNDS = [16_000, 9_000, 4_000]
STARTS = [[0, 20, 30], [0], [0, 100]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("attention-models")
    kinds = {
        "hybrid": models.make_hybrid,
        "encoder": models.make_encoder,
        "encoder_decoder": models.make_encoder_decoder,
    }
    for kind, make in kinds.items():
        make(root / kind)
    return {kind: root / kind for kind in kinds}


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("attention-kinds")
    job = {
        **{kind: str(folder) for kind, folder in folders.items()},
        "new_tokens": NEW_TOKENS,
        "prompts": PROMPTS,
        "sounds": SOUNDS,
        "starts": STARTS,
    }
    (root / "job.json").write_text(json.dumps(job))
    program = [sys.executable, str(HERE / "attention_engines.py")]
    done = subprocess.run(
        [*program, str(root / "job.json"), str(root / "result.json")],
        env={**os.environ, "VLLM_PLUGINS": "anvil"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.fail(
            f"an engine failed:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}", pytrace=False
        )
    return json.loads((root / "result.json").read_text())


@pytest.mark.surface(
    "prefix caching",
    "answers",
    "layers with and without a window, prompts in chunks: transformers' tokens",
)
def test_hybrid_groups_chunks_and_prefixes(
    answers: dict[str, Any], folders: dict[str, Path]
) -> None:
    found = answers["hybrid"]
    assert sorted(found["groups"]) == ["FullAttentionSpec", "SlidingWindowSpec"]
    assert len({token for tokens in found["tokens"] for token in tokens}) > 20  # no repetition
    assert found["tokens"] == models.most_probable(folders["hybrid"], PROMPTS, found["tokens"])
    # All whole blocks of a prompt but the last token's.
    assert found["cached"] == [(len(prompt) - 1) // 4 * 4 for prompt in PROMPTS]
    assert found["again"] == found["tokens"]
    assert found["layers"] == [f"model.layers.{i}.self_attn.attn" for i in range(4)]


def test_encoder_only(answers: dict[str, Any], folders: dict[str, Path]) -> None:
    found = answers["encoder"]
    expected = models.embeddings(folders["encoder"], PROMPTS)
    torch.testing.assert_close(torch.tensor(found["embeddings"]), expected, rtol=1e-5, atol=1e-5)
    assert len(found["layers"]) == 2


def test_cross_attention(answers: dict[str, Any], folders: dict[str, Path]) -> None:
    found = answers["encoder_decoder"]
    assert len({tuple(one) for one in found["tokens"]}) == len(SOUNDS)
    assert found["tokens"] == models.most_probable_heard(
        folders["encoder_decoder"], models.sounds(SOUNDS), STARTS, found["tokens"]
    )
    # The encoder's attention is the engine's; the decoder's, to itself and to the encoder, ours.
    kinds = {name.rsplit(".", 2)[1] for name in found["layers"]}
    assert kinds == {"self_attn", "encoder_attn"}
    assert len(found["layers"]) == 4
