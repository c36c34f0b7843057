# SPDX-License-Identifier: Apache-2.0
"""Completions and chats by the unmodified OpenAI client, whole and streamed, are transformers'."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from openai import OpenAI

from .language_model import LOGPROB_TOLERANCE, LanguageModel

PROMPTS = ["The sea is", "My favourite animals are", "Once upon a time,"]
QUESTION = [{"role": "user", "content": "Who wrote Romeo and Juliet?"}]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)
NEW_TOKENS = 16
SEED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def model(smollm2: Any) -> LanguageModel:
    return LanguageModel(smollm2)


class Streamed:
    """What the parts of a stream add up to, by the number of the choice."""

    def __init__(self, parts: Any) -> None:
        self.texts: dict[int, str] = defaultdict(str)
        self.finish: dict[int, str] = {}
        self.parts, self.usage = 0, None
        for part in parts:
            self.parts += 1
            self.usage = part.usage or self.usage
            for choice in part.choices:
                delta = getattr(choice, "delta", None)
                self.texts[choice.index] += (choice.text if delta is None else delta.content) or ""
                if choice.finish_reason is not None:
                    assert choice.index not in self.finish
                    self.finish[choice.index] = choice.finish_reason


def complete(client: OpenAI, prompt: Any, extra: dict[str, Any] | None = None, **more: Any) -> Any:
    """Greedy unless told otherwise."""
    # With token ids, the engine echoes no text.
    plain = more.get("stream") or more.get("echo")
    body = extra if plain else {"return_token_ids": True, **(extra or {})}
    arguments: Any = {"temperature": 0, "max_tokens": NEW_TOKENS, **more}
    return client.completions.create(model="model", prompt=prompt, extra_body=body, **arguments)


def chat(client: OpenAI, messages: Any, **more: Any) -> Any:
    arguments: Any = {"temperature": 0, "max_tokens": NEW_TOKENS, **more}
    return client.chat.completions.create(model="model", messages=messages, **arguments)


def ids(choice: Any) -> list[int]:
    return choice.model_dump()["token_ids"]


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("generative models", section, what)


@marked("completions API", "several prompts in a request; greedy tokens are transformers'")
@marked("completions API", "`--generation-config vllm`: 16 tokens and no penalty by default")
def test_completions(openai_client: OpenAI, model: LanguageModel) -> None:
    answer = openai_client.completions.create(
        model="model", prompt=PROMPTS, temperature=0, extra_body={"return_token_ids": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for text, choice in zip(PROMPTS, answer.choices, strict=True):
        assert len(ids(choice)) == 16 and choice.finish_reason == "length"
        model.check_greedy(model.encode(text), ids(choice))
        assert choice.text == model.tokenizer.decode(ids(choice))
    prompts = sum(len(model.encode(text)) for text in PROMPTS)
    assert answer.usage.prompt_tokens == prompts and answer.usage.completion_tokens == 48


@marked("chat API", "with the model's chat template, and with one of the request's")
def test_chat(openai_client: OpenAI, model: LanguageModel) -> None:
    for template in (None, TEMPLATE):
        body: dict[str, Any] = {"return_token_ids": True}
        if template is not None:
            body["chat_template"] = template
        answer = chat(openai_client, QUESTION, max_tokens=40, extra_body=body)
        (choice,), prompt = answer.choices, model.chat(QUESTION, template)
        assert answer.model_dump()["prompt_token_ids"] == prompt
        model.check_greedy(prompt, ids(choice))
        assert choice.message.content == model.tokenizer.decode(
            ids(choice), skip_special_tokens=True
        )
    assert "Shakespeare" in chat(openai_client, QUESTION, max_tokens=40).choices[0].message.content


@marked("completions API", "streamed text equals the whole, with `n`, seeds and stop strings")
@marked("chat API", "streamed text equals the whole, with `n`, seeds and stop strings")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n": 3, **SEED},
        {"stop": ["."], "max_tokens": 40},
        {"n": 2, **SEED, "stop": ["e ", "a"]},
    ],
    ids=["greedy", "several", "a stop string", "several with stop strings"],
)
def test_streams(openai_client: OpenAI, arguments: dict[str, Any]) -> None:
    usage: Any = {"stream": True, "stream_options": {"include_usage": True}}
    asks = ((complete, PROMPTS[1]), (chat, QUESTION))
    for ask, prompt in asks:
        whole = ask(openai_client, prompt, **arguments)
        parts = Streamed(ask(openai_client, prompt, **arguments, **usage))
        assert len(whole.choices) == arguments.get("n", 1)
        for choice in whole.choices:
            text = choice.text if ask is complete else choice.message.content
            assert parts.texts[choice.index] == text
            assert parts.finish[choice.index] == choice.finish_reason
            assert not any(stop in text for stop in arguments.get("stop", []))
        if "seed" in arguments:
            assert len(set(parts.texts.values())) > 1
        assert parts.parts > 3 and parts.usage is not None
        assert parts.usage.completion_tokens == whole.usage.completion_tokens


@marked("completions API", "`stop` ends a text before the string, or after it where asked for")
def test_stop_strings(openai_client: OpenAI) -> None:
    (plain,) = complete(openai_client, PROMPTS[0], max_tokens=40).choices
    (choice,) = complete(openai_client, PROMPTS[0], max_tokens=40, stop=[" of"]).choices
    before, found, _ = plain.text.partition(" of")
    assert found and choice.text == before and choice.finish_reason == "stop"
    assert choice.model_dump()["stop_reason"] == " of"
    kept = {"include_stop_str_in_output": True}
    (choice,) = complete(openai_client, PROMPTS[0], kept, max_tokens=40, stop=[" of"]).choices
    assert choice.text == before + " of"


@marked("completions API", "`logprobs`, `prompt_logprobs` and `echo`: transformers' to 0.001")
def test_logprobs_of_completions(openai_client: OpenAI, model: LanguageModel) -> None:
    prompt = model.encode(PROMPTS[1])
    body = {"prompt_logprobs": 1}
    (choice,) = complete(openai_client, PROMPTS[1], body, logprobs=3).choices
    model.check_logprobs(prompt, ids(choice), choice.logprobs.token_logprobs)
    assert "".join(choice.logprobs.tokens) == choice.text
    for chosen, best in zip(
        choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert len(best) >= 3 and max(best.values()) == chosen
    given = choice.model_dump()["prompt_logprobs"]
    assert given[0] is None
    pairs = zip(prompt[1:], given[1:], strict=True)
    model.check_prompt_logprobs(prompt, [entry[str(token)]["logprob"] for token, entry in pairs])

    (echoed,) = complete(openai_client, PROMPTS[1], echo=True, logprobs=1).choices
    assert echoed.text == PROMPTS[1] + choice.text
    assert echoed.logprobs.token_logprobs[0] is None
    both = echoed.logprobs.token_logprobs[1:]
    model.check_prompt_logprobs(prompt + ids(choice), both)
    (alone,) = complete(openai_client, PROMPTS[1], echo=True, logprobs=1, max_tokens=0).choices
    assert alone.text == PROMPTS[1]
    model.check_prompt_logprobs(prompt, alone.logprobs.token_logprobs[1:])


@marked("chat API", "`logprobs` with `top_logprobs`: transformers' to 0.001, streamed too")
def test_logprobs_of_chats(openai_client: OpenAI, model: LanguageModel) -> None:
    arguments = {"logprobs": True, "top_logprobs": 2}
    (choice,) = chat(
        openai_client, QUESTION, **arguments, extra_body={"return_token_ids": True}
    ).choices
    found = [one.logprob for one in choice.logprobs.content]
    model.check_logprobs(model.chat(QUESTION), ids(choice), found)
    assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)
    streamed = [
        one.logprob
        for part in chat(openai_client, QUESTION, **arguments, stream=True)
        for of in part.choices
        if of.logprobs is not None
        for one in of.logprobs.content
    ]
    assert len(streamed) == len(found)
    assert max(abs(a - b) for a, b in zip(streamed, found, strict=True)) < LOGPROB_TOLERANCE
