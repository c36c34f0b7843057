# SPDX-License-Identifier: Apache-2.0
"""A server whose adapters come and go by HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ..e2e import lora_models as models
from ..e2e.attention_models import save_tokenizer
from .plugin_environment import environment
from .served import Server, serve
from .servers import MEMORY

PROMPT = [3, 5, 7, 9, 11]


def shown(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("LoRA", section, what)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    models.llama().save_pretrained(root / "base")
    save_tokenizer(root / "base")
    for name in ("rank8", "rank16"):
        models.save_adapter(root / name, models.ADAPTERS[name])
    models.save_adapter(root / "too_large", models.Adapter(64))
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "16", "--dtype", "float32"]
    options += ["--max-model-len", "128", "--max-num-seqs", "4", "--num-gpu-blocks-override", "64"]
    options += ["--lora-modules", f"given={root / 'rank8'}"]
    variables = environment(VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", **MEMORY)
    folder = tmp_path_factory.mktemp("server")
    with serve(folder, root / "base", options, variables) as found:
        yield found


def answer(server: Server, model: str) -> list[int]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    status, found = server.ask(
        "/v1/completions", body | {"return_token_ids": True, "ignore_eos": True}
    )
    assert status == 200, found
    return found["choices"][0]["token_ids"]


def is_best(adapter: str | None, tokens: list[int]) -> bool:
    model = models.merged(models.ADAPTERS.get(adapter or ""))
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return bool((logits.max(-1).values - chosen).max() < 1e-3)


def load(server: Server, name: str, path: Path, **more: Any) -> tuple[int, Any]:
    body = {"lora_name": name, "lora_path": str(path), **more}
    return server.ask("/v1/load_lora_adapter", body)


def names(server: Server) -> set[str]:
    return {one["id"] for one in server.ask("/v1/models")[1]["data"]}


@shown("routes", "`--lora-modules`, `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`")
@shown("routes", "an adapter is a model of `/v1/models`, asked for by its name")
def test_adapters_come_and_go(server: Server, root: Path) -> None:
    assert names(server) == {"model", "given"}
    assert load(server, "later", root / "rank16")[0] == 200
    assert names(server) == {"model", "given", "later"}
    for model, adapter in (("later", "rank16"), ("given", "rank8"), ("model", None)):
        assert is_best(adapter, answer(server, model)), model
    assert server.ask("/v1/unload_lora_adapter", {"lora_name": "later"})[0] == 200
    assert names(server) == {"model", "given"}
    status, said = server.ask("/v1/completions", {"model": "later", "prompt": PROMPT})
    assert status == 404 and "later" in said["error"]["message"]


@shown("errors", "by HTTP: 400 or 404, naming why; the server goes on")
def test_what_cannot_be_loaded_is_the_clients_mistake(server: Server, root: Path) -> None:
    status, said = load(server, "large", root / "too_large")
    assert status == 400, said
    assert "rank 64 is greater than max_lora_rank 16" in said["error"]["message"]
    status, said = load(server, "nowhere", root / "nowhere")
    assert status == 404 and "nowhere" in said["error"]["message"]
    status, said = load(server, "given", root / "rank16")
    assert status == 400 and "already been loaded" in said["error"]["message"]
    assert names(server) == {"model", "given"}
    assert is_best("rank8", answer(server, "given"))
