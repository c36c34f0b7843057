# SPDX-License-Identifier: Apache-2.0
"""A trainer gives a server other weights while it runs. The trainer is this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from vllm_anvil.plugin.weight_transfer import AnvilTrainerInitInfo

from .served import Server

PROMPT = [1, 504, 3575, 282, 260]


def shown(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("other weights", section, what)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def trainer(server: Server, model: Any) -> Iterator[Any]:
    engine = WeightTransferTrainerFactory.trainer_init(
        # Less than the embedding, so that there are several files.
        AnvilTrainerInitInfo(rank=0, chunk_bytes=64 << 20),
        client=HTTPVLLMWeightSyncClient(server.root),
        source=ModuleSource(model),
    )
    yield engine
    engine.shutdown()
    assert not engine.folder.exists()


@contextlib.contextmanager
def trained(model: Any) -> Iterator[None]:
    """Inside, the trainer's weights are others."""
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(0.05 * weight.std(correction=0) * noise)
    try:
        yield
    finally:
        model.load_state_dict(before)


def answer(server: Server) -> list[int]:
    body = {"model": "model", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True, "repetition_penalty": 1.0}
    status, found = server.ask("/v1/completions", body)
    assert status == 200, found
    return found["choices"][0]["token_ids"]


@torch.inference_mode()
def is_best(model: Any, tokens: list[int]) -> bool:
    logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return bool((logits.max(-1).values - chosen).max() < 1e-3)


@shown("routes", "`/init_weight_transfer_engine` to `/finish_weight_update`, from a trainer")
@shown(
    "in place", "weights of a trainer, packed and tied ones, with graphs from before: its tokens"
)
def test_other_weights_and_the_first_ones_again(server: Server, trainer: Any, model: Any) -> None:
    def send() -> None:
        trainer.send_weights()
        assert not list(trainer.folder.iterdir())
        assert server.ask("/reset_prefix_cache", {})[0] == 200

    first = answer(server)
    assert is_best(model, first)
    try:
        with trained(model):
            send()
            other = answer(server)
            assert is_best(model, other) and not is_best(model, first)
    finally:
        send()
    assert answer(server) == first


@shown("errors", "a file that cannot be read, or a folder of another host: named; it goes on")
def test_mistakes_are_named(server: Server, trainer: Any) -> None:
    first = answer(server)
    status, said = server.ask(
        "/init_weight_transfer_engine", {"init_info": {"folder": "/no/such/folder"}}
    )
    assert status >= 400 and "/no/such/folder is not on this host" in str(said)
    for file, reason in (("missing", "cannot be read"), ("../other", "is no name of a file")):
        assert server.ask("/start_weight_update", {})[0] == 200
        status, said = server.ask("/update_weights", {"update_info": {"file": file}})
        assert status >= 400 and reason in str(said), said
    trainer.send_weights()
    assert answer(server) == first
