# SPDX-License-Identifier: Apache-2.0
"""`LLM` with a generative model: `generate`, `chat`, `beam_search`, and what parameters it takes by
itself. The model is SmolLM2 in float32, whose `generation_config.json` recommends something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import REPETITION, SHORT, Run
from .language_model import LOGPROB_TOLERANCE, LanguageModel

NEW_TOKENS = 16
PROMPTS = ["The sea is", "My favourite animals are", "Once upon a time,"]
CONVERSATIONS = [
    [{"role": "user", "content": "Who wrote Romeo and Juliet?"}],
    [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Where is the treasure?"},
        {"role": "assistant", "content": "On the island."},
        {"role": "user", "content": "Which island?"},
    ],
]
TEMPLATE = """\
{% for message in messages %}{{ message['role'] | upper }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}ANSWER:{% endif %}"""
SEARCHES: list[dict[str, Any]] = [
    {"beam_width": 2, "max_tokens": 8, "ignore_eos": True},
    {"beam_width": 5, "max_tokens": 4, "ignore_eos": True},
]


@pytest.fixture(scope="module")
def found(recommending: Path, run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    template = tmp_path_factory.mktemp("template") / "roles.jinja"
    template.write_text(TEMPLATE)
    engine = {
        "model": str(recommending),
        "runner": "generate",
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 16,
    }
    job = {
        "engine": engine,
        "prompts": PROMPTS,
        "conversations": CONVERSATIONS,
        "template": str(template),
        "beams": SEARCHES,
        "new_tokens": NEW_TOKENS,
    }
    return run_program("generation_engine.py", job, [])[0]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> LanguageModel:
    return LanguageModel(smollm2)


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("generative models", section, what)


@marked("model runner", '`runner="generate"`; methods of pooling models are refused by name')
def test_the_runner(found: dict[str, Any]) -> None:
    assert found["runner"] == "generate"
    for error in found["refused"]:
        assert error.startswith("ValueError") and "--runner pooling" in error


@marked("LLM.generate", "texts in, tokens and texts out; greedy ones are transformers'")
def test_generate(found: dict[str, Any], model: LanguageModel) -> None:
    for text, output in zip(PROMPTS, found["greedy"], strict=True):
        assert output["prompt_token_ids"] == model.encode(text)
        assert len(output["token_ids"]) == NEW_TOKENS
        model.check_greedy(output["prompt_token_ids"], output["token_ids"])
        assert output["text"] == model.tokenizer.decode(output["token_ids"])


@marked("LLM.generate", "without parameters, those of the model's `generation_config.json`")
def test_what_the_model_recommends(found: dict[str, Any], model: LanguageModel) -> None:
    assert found["defaults"] == {
        "temperature": 1.0,
        "top_k": 1,
        "repetition_penalty": REPETITION,
        "max_tokens": SHORT,
    }
    for output in found["by default"]:
        assert len(output["token_ids"]) == SHORT
        model.check_greedy(output["prompt_token_ids"], output["token_ids"], REPETITION)
    assert [one["token_ids"] for one in found["by default"]] != [
        one["token_ids"][:SHORT] for one in found["greedy"]
    ]


@marked("LLM.chat", "with the model's chat template, one conversation or several")
@marked("LLM.chat", "with a given template, as text or by `load_chat_template`")
def test_chat(found: dict[str, Any], model: LanguageModel) -> None:
    for how, template in (("chat", None), ("template", TEMPLATE), ("loaded", TEMPLATE)):
        for messages, output in zip(CONVERSATIONS, found[how], strict=True):
            assert output["prompt_token_ids"] == model.chat(messages, template)
            model.check_greedy(output["prompt_token_ids"], output["token_ids"])
    assert found["loaded"] == found["template"]


@marked("LLM.beam_search", "sequences and log-probabilities are those of transformers' beams")
@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_beam_search(found: dict[str, Any], model: LanguageModel, number: int) -> None:
    search = SEARCHES[number]
    for text, sequences in zip(PROMPTS[:2], found["beams"][number], strict=False):
        wanted = model.beams(model.encode(text), search["beam_width"], search["max_tokens"])
        for one, other in zip(sequences, wanted, strict=True):
            assert one["token_ids"] == other["token_ids"]
            assert abs(one["logprob"] - other["logprob"]) < LOGPROB_TOLERANCE
