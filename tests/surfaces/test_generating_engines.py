# SPDX-License-Identifier: Apache-2.0
"""Custom logits processors in engines, loaded in every way that the engine has, and a model that
the engine does not have, by a general plugin.

Greedy tokens are held against transformers' logits with the processors written down row by row;
where the best two are closer than TIE, either will do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from row_references import BARRED, allowed_tokens, minimum_phrase_length, no_repeat_ngram

from .conftest import SOFT_CAP, Run
from .plugin_environment import example_entry_points, install

TIE = 1e-3
LOGPROB_TOLERANCE = 2e-3
NEW_TOKENS = 20
COUNTS = {"LLM": 40, "AsyncLLM": 24}
BY_NAME = [
    "plugins_example.target_token:TargetToken",
    "vllm_anvil.logits_processors:AllowedTokens",
    "vllm_anvil.logits_processors:NoRepeatNGram",
    "vllm_anvil.logits_processors:MinimumPhraseLength",
    "processors:Breaks",
]
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 160,
    "max_num_seqs": 8,
    # Prompts are computed in parts.
    "max_num_batched_tokens": 48,
    # A third of what 8 requests may need.
    "block_size": 16,
    "num_gpu_blocks_override": 26,
    "enable_prefix_caching": False,
    "seed": 0,
}
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"target_token": 67},
    {"allowed_tokens": ["1000-3000", 7]},
    {"no_repeat_ngram_size": 1},
    {
        "allowed_tokens": ["20-26"],
        "min_phrase_length": 3,
        "phrase_end_tokens": [20, 21, 22, 23],
    },
    {"above": 40000},
    {"multiple_of": 1000},
    {"multiple_of": 7, "above": 30000, "no_repeat_ngram_size": 2},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"target_token": "none"}, "target_token must be the id of a token, not 'none'"),
    ({"allowed_tokens": ["9-4"]}, "allowed_tokens has '9-4'"),
    ({"min_phrase_length": 3}, "given together"),
    ({"break_in": "validate_params"}, "a mistake in the plugin's validate_params"),
]


def greedy(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": 0,
        "max_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": 0,
        "extra_args": arguments,
    }


def requests(count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [
        {
            "token_ids": [rng.randrange(10, 49000) for _ in range(rng.randint(1, 120))],
            "params": greedy(ARGUMENTS[i % len(ARGUMENTS)]),
        }
        for i in range(count)
    ]


def referenced(
    tokens: list[int], prompt: int, arguments: dict[str, Any], row: torch.Tensor
) -> torch.Tensor:
    """All processors, the ones of these tests first."""
    ids = torch.arange(len(row))
    if "target_token" in arguments:
        row[ids != arguments["target_token"]] = BARRED
    if "above" in arguments:
        row[ids <= arguments["above"]] = BARRED
    if "multiple_of" in arguments:
        row[ids % arguments["multiple_of"] != 0] = BARRED
    for reference in (allowed_tokens, no_repeat_ngram, minimum_phrase_length):
        row = reference(tokens, prompt, arguments, row)
    return row


class Expected:
    """transformers' logits of the tiny Llama, and what a model and processors make of them."""

    def __init__(self, folder: Path) -> None:
        from transformers import LlamaForCausalLM

        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def check(self, request: dict[str, Any], output: dict[str, Any], soft_cap: bool) -> None:
        prompt, found = request["token_ids"], output["token_ids"]
        arguments = request["params"]["extra_args"]
        assert len(found) == NEW_TOKENS
        logits = self.model(torch.tensor([prompt + found])).logits[0, len(prompt) - 1 : -1]
        if soft_cap:
            logits = SOFT_CAP * torch.tanh(logits / SOFT_CAP)
        for i, token in enumerate(found):
            left = referenced(prompt + found[:i], len(prompt), arguments, logits[i].clone())
            assert left[token] >= left.max() - TIE, (arguments, i)
        # As the model computed them, before the processors.
        logprobs = logits.log_softmax(-1)[range(len(found)), found]
        assert (logprobs - torch.tensor(output["logprobs"])).abs().max() < LOGPROB_TOLERANCE


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> Expected:
    return Expected(tiny_llama)


Programs = Mapping[str, Future[tuple[dict[str, Any], str]]]


@pytest.fixture(scope="module")
def programs(
    tiny_llama: Path,
    soft_cap_llama: Path,
    run_program: Run,
    at_once: Callable[..., Programs],
    tmp_path_factory: pytest.TempPathFactory,
) -> Programs:
    """Both engines, beside a distribution with a processor and with the example's entry points,
    one of them under two names. The asynchronous one serves the example's model."""
    site = tmp_path_factory.mktemp("site")
    groups = example_entry_points()
    groups["vllm.general_plugins"]["again"] = "plugins_example.registration:register_models"
    groups["vllm.general_plugins"]["witness"] = "witness:note"
    groups["vllm.logits_processors"] = {"above": "processors:FromEntryPoint"}
    install(site, "surfaces_of_these_tests", groups)
    engine = ENGINE | {"logits_processors": BY_NAME}
    wrong = [greedy(arguments) for arguments, _ in WRONG]
    offline = {
        "engine": engine | {"model": str(tiny_llama)},
        "requests": requests(COUNTS["LLM"]),
        "wrong": wrong,
    }
    asynchronous = {
        "engine": engine | {"model": str(soft_cap_llama)},
        "requests": requests(COUNTS["AsyncLLM"]),
        "wrong": wrong,
        "breaks": greedy({"break_in": "apply"}),
    }
    spawned = {
        # So that every process of the engine loads the plugins by itself.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "WITNESS": str(site / "witnesses"),
    }
    return at_once(
        {
            "LLM": partial(run_program, "offline_engine.py", offline, [site]),
            "AsyncLLM": partial(run_program, "async_engine.py", asynchronous, [site], **spawned),
        }
    )


def result(programs: Programs, engine: str) -> dict[str, Any]:
    return programs[engine].result()[0]


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("logits processors", section, what)


@marked("loading", "by qualified name, by entry point and as a class object, in `LLM`, `AsyncLLM`")
@marked("custom arguments", "`SamplingParams.extra_args`; requests with and without in one batch")
@marked("example", "the target token: requests with the argument give that token only")
@pytest.mark.parametrize("engine", list(COUNTS))
def test_answers(programs: Programs, expected: Expected, engine: str) -> None:
    outputs = result(programs, engine)["outputs"]
    for request, output in zip(requests(COUNTS[engine]), outputs, strict=True):
        expected.check(request, output, soft_cap=engine == "AsyncLLM")
        if "target_token" in request["params"]["extra_args"]:
            assert output["token_ids"] == [67] * NEW_TOKENS


@marked("writing one", "re-used slots, partial prefills and pre-emption: the answers are the same")
def test_the_load_is_mixed(programs: Programs) -> None:
    """More requests than slots, prompts longer than a step; and there were pre-emptions."""
    assert result(programs, "LLM")["pre_emptions"] > 5


@marked("custom arguments", "invalid ones fail their request alone")
@pytest.mark.parametrize("engine", ["LLM", "AsyncLLM"])
def test_invalid_arguments_fail_their_request(programs: Programs, engine: str) -> None:
    found = result(programs, engine)
    for error, (_, words) in zip(found["wrong"], WRONG, strict=True):
        assert error is not None and words in error
    if engine == "AsyncLLM":
        assert found["after"] == found["outputs"][0]["token_ids"]


@marked("loading", "a class of Model Runner V1's interface, or none, is refused at start by name")
def test_the_wrong_interface_is_refused(programs: Programs) -> None:
    refused = result(programs, "LLM")["refused"]
    for how in ("a class", "a name"):
        assert "OfV1 is not a subclass" in refused[how]
        assert "vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor" in refused[how]
    assert "nowhere:No" in refused["no module"]
    assert "nowhere.No" in refused["no path"] and "<module>:<type>" in refused["no path"]


@marked("errors", "a processor that raises in a step ends the engine; the log names its file")
def test_raising_in_a_step_ends_the_engine(programs: Programs) -> None:
    found, said = programs["AsyncLLM"].result()
    assert found["dead"]
    assert "EngineDeadError" in found["broken"] and "EngineDeadError" in found["then"]
    assert "processors.py" in said and "a mistake in the plugin's apply" in said


@pytest.mark.surface(
    "plugin system",
    "general plugins",
    "a model of one's own, chosen by `config.json`; its answers are those of `test_answers`",
)
@pytest.mark.surface(
    "plugin system",
    "general plugins",
    "loaded in every process of the engine, by two entry points",
)
def test_a_model_by_a_general_plugin(programs: Programs) -> None:
    found = result(programs, "AsyncLLM")
    assert found["architecture"] == "SoftCapLlamaForCausalLM"
    lines = [line.split() for line in found["witnesses"]]
    assert {pid for pid, _ in lines} >= {str(pid) for pid in found["processes"]}
    assert len(set(found["processes"])) == 2
    # The witness is asked after both entry points.
    assert {registered for _, registered in lines} == {"True"}
