# SPDX-License-Identifier: Apache-2.0
"""Adapters answer as models would into whose weights they are merged.

One batch has every adapter and requests without one, more adapters than the layers have places for.
The reference is transformers, with weights merged by hand in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from . import lora_models as models
from .conftest import ProgramRun

PROMPTS = [
    [3, 5, 7, 9, 11],
    # Several parts of a prompt, and n-grams that come again.
    [100, 200, 300, *(list(range(20, 33)) * 5), 100, 200],
]
REQUESTS = [(name, prompt) for prompt in PROMPTS for name in (None, *models.ADAPTERS)]
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enable_lora": True,
    "max_loras": 4,
    "max_cpu_loras": 8,
    "max_lora_rank": 256,
    "max_model_len": 160,
    "max_num_seqs": 8,
    # Prompts are computed in parts.
    "max_num_batched_tokens": 48,
    # Half of what 8 requests may need.
    "block_size": 16,
    "num_gpu_blocks_override": 36,
    "skip_tokenizer_init": True,
    "seed": 0,
}
TOLERANCE = 1e-3  # log-probabilities of the tiny model are spread over 20 and more

Act = Callable[..., dict[str, Any]]


def shown(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("LoRA", section, what)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, the adapters, and in `broken` what cannot be loaded."""
    root = tmp_path_factory.mktemp("lora")
    models.llama().save_pretrained(root / "base")
    for name, adapter in models.ADAPTERS.items():
        models.save_adapter(root / name, adapter)
    broken, plain = root / "broken", models.Adapter(8)
    models.save_adapter(broken / "of_too_large_a_rank", models.Adapter(512))
    models.save_adapter(broken / "with_dora", plain, use_dora=True)
    models.save_adapter(broken / "without_weights", plain)
    (broken / "without_weights" / "adapter_model.safetensors").unlink()
    models.save_adapter(broken / "cut_short", plain)
    weights = broken / "cut_short" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    models.save_adapter(broken / "for_a_module_that_is_not_there", plain)
    weights = broken / "for_a_module_that_is_not_there" / "adapter_model.safetensors"
    save_file({k.replace("q_proj", "other"): v for k, v in load_file(weights).items()}, weights)
    return root


@pytest.fixture(scope="module")
def act(root: Path, program_run: ProgramRun) -> Act:
    """`act(acts, engine, **environment)`: what lora_run.py found."""

    def run(acts: Iterable[str], engine: dict[str, Any], **variables: str) -> dict[str, Any]:
        job = {
            "engine": {"model": str(root / "base"), **ENGINE, **engine},
            "adapters": {name: str(root / name) for name in models.ADAPTERS},
            "requests": REQUESTS,
            "acts": list(acts),
        }
        in_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return program_run("lora_run.py", job, **(in_process | variables))

    return run


@pytest.fixture(scope="module")
def found(act: Act) -> dict[str, Any]:
    return act(["graphs", "prefixes", "managed", "broken", "replaced"], {})


@pytest.fixture(scope="module")
def merged() -> dict[str | None, Any]:
    """The model with each adapter in its weights."""
    return {name: models.merged(models.ADAPTERS.get(name or "")) for name in dict(REQUESTS)}


@torch.inference_mode()
def check(model: Any, prompt: list[int], output: dict[str, Any]) -> None:
    """Every token is the most probable one after those before it, and probabilities are right."""
    tokens = output["tokens"]
    logits = model(torch.tensor([prompt + tokens])).logits[0, :-1].double()
    distributions = logits.log_softmax(-1)
    following = torch.tensor([*prompt[1:], *tokens])
    expected = distributions.gather(1, following.unsqueeze(1)).squeeze(1)
    answer = slice(len(prompt) - 1, None)
    gaps = distributions[answer].max(-1).values - expected[answer]
    assert gaps.max() < TOLERANCE
    given = torch.tensor(output["logprobs"], dtype=torch.float64)
    torch.testing.assert_close(given, expected[answer], rtol=0, atol=TOLERANCE)
    if output["prompt_logprobs"]:
        given = torch.tensor(output["prompt_logprobs"], dtype=torch.float64)
        torch.testing.assert_close(given, expected[: len(prompt) - 1], rtol=0, atol=TOLERANCE)


def check_all(merged: dict[str | None, Any], outputs: list[dict[str, Any]]) -> None:
    for (name, prompt), output in zip(REQUESTS, outputs, strict=True):
        assert len(output["prompt_logprobs"]) == len(prompt) - 1
        check(merged[name], prompt, output)


@shown("answers", "several adapters and none in one batch, more than there are places for")
@shown("answers", "ranks 5 to 256 under `max_lora_rank` 256, of all linear layers")
@shown("answers", "adapters of the embedding and the head; a vocabulary that is padded")
@shown("answers", "tokens, log-probabilities and those of the prompt: as with merged weights")
def test_as_merged(found: dict[str, Any], merged: dict[str | None, Any]) -> None:
    check_all(merged, found["outputs"])


def test_adapters_make_a_difference(merged: dict[str | None, Any]) -> None:
    """Of all tests here the condition."""
    with torch.inference_mode():
        last = {
            name: model(torch.tensor([PROMPTS[0]])).logits[0, -1] for name, model in merged.items()
        }
    best = {name: int(one.argmax()) for name, one in last.items()}
    assert len(set(best.values())) > len(best) // 2, best
    for name in models.ADAPTERS:
        assert (last[name] - last[None]).abs().max() > 1, name


@shown("graphs", "steps with adapters are replayed without Python")
def test_decodes_are_replayed(found: dict[str, Any]) -> None:
    assert found["graphs"] == 1


@shown("prefix caching", "blocks are shared by requests of one adapter, and by no others")
def test_prefixes_are_the_adapters_own(
    found: dict[str, Any], merged: dict[str | None, Any]
) -> None:
    outputs = found["prefixes"]
    assert [one["cached"] for one in outputs] == [0, 48, 0, 48, 0, 48, 48]
    names = [None, None, "rank8", "rank8", "rank64", "rank64", None]
    for name, output in zip(names, outputs, strict=True):
        check(merged[name], list(range(100, 150)), output)


@shown("adapters", "`add_lora`, `list_loras`, `pin_lora`, `remove_lora`")
def test_adapters_come_and_go(found: dict[str, Any], merged: dict[str | None, Any]) -> None:
    managed = found["managed"]
    number = managed["number"]
    assert managed["none"] == []
    assert managed["added"] and managed["pinned"] and managed["removed"]
    assert managed["listed"] == list(range(1, 1 + len(models.ADAPTERS)))
    assert not managed["again"]
    assert managed["left"] == [one for one in managed["listed"] if one != number]
    assert "77" in managed["unknown"]
    check(merged["rank5"], PROMPTS[0], managed["outputs"][0])


@shown("adapters", "`load_inplace`: an adapter replaces another of its number")
def test_an_adapter_is_replaced(found: dict[str, Any], merged: dict[str | None, Any]) -> None:
    for name, output in zip(("rank64", "rank16"), found["replaced"], strict=True):
        check(merged[name], REQUESTS[0][1], output)


@shown("errors", "an adapter that cannot be loaded is named with the reason; the engine goes on")
def test_what_cannot_be_loaded_is_named(
    found: dict[str, Any], merged: dict[str | None, Any]
) -> None:
    said = found["broken"]["said"]
    assert "512 is greater than max_lora_rank 256" in said["of_too_large_a_rank"]
    assert "DoRA" in said["with_dora"]
    assert "without_weights" in said["without_weights"]
    assert "other" in said["for_a_module_that_is_not_there"]
    assert "missing" in said["missing"]
    assert not [name for name, one in said.items() if one.startswith("no error")]
    check_all(merged, found["broken"]["outputs"])


@shown("with others", "speculative decoding by n-grams")
def test_with_speculation(act: Act, merged: dict[str | None, Any]) -> None:
    """A request has several rows of logits, and all of them its adapter's head."""
    ngram = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    found = act([], {"speculative_config": ngram | {"num_speculative_tokens": 3}})
    check_all(merged, found["outputs"])


@shown("several devices", "tensor-parallel, with A whole on every rank or cut as well")
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "fully_sharded_loras"])
def test_two_devices(act: Act, merged: dict[str | None, Any], cut: bool) -> None:
    found = act(
        [],
        {"tensor_parallel_size": 2, "fully_sharded_loras": cut},
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        ANVIL_DEVICES="2",
        ANVIL_SHARE_CORES="1",
    )
    check_all(merged, found["outputs"])
