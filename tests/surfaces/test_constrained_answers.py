# SPDX-License-Identifier: Apache-2.0
"""Structured outputs and tool calls by the OpenAI client, beside requests without any, at once.

What an answer must be is checked by jsonschema, `re` and a parser of a few lines.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI

from .language_model import LanguageModel
from .served import Server
from .servers import async_openai_client

QUESTION = [{"role": "user", "content": "Tell me about a person and a number."}]
PLAIN = ["Who wrote Romeo and Juliet?", "Name three colours.", "What is the sea?", "Who are you?"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"[A-F]{2}-[0-9]{3}(\.[0-9]{2})?"
CHOICES = ["definitely", "perhaps", "never"]
# Sums of digits in parentheses.
GRAMMAR = """
root ::= "(" sum ")"
sum ::= term ("+" term)*
term ::= [0-9] | "(" sum ")"
"""
CALL = (
    r'<tool_call>\{"name": "add", "arguments": \{"a": [0-9]{1,3}, "b": [0-9]{1,3}\}\}</tool_call>'
)
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": of, "strict": True}}
    for name, of in (("add", NUMBERS), ("weather", CITY))
]
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.fixture(scope="module")
def model(smollm2: Any) -> LanguageModel:
    return LanguageModel(smollm2)


def is_sum(text: str) -> bool:
    """Innermost sums become a digit until one digit is left."""
    while True:
        shorter = re.sub(r"\([0-9](\+[0-9])*\)", "0", text)
        if shorter == text:
            return text == "0"
        text = shorter


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": of, "strict": True}}


def by_extra(**constraint: Any) -> dict[str, Any]:
    return {"extra_body": {"structured_outputs": constraint}}


# By name: arguments of a request, and what its text must be.
CONSTRAINED: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "schema": ({"response_format": schema(PERSON)}, is_person),
    "schema of vLLM's": (by_extra(json=PERSON), is_person),
    "object": ({"response_format": {"type": "json_object"}}, is_object),
    "regex": (by_extra(regex=REGEX), lambda text: re.fullmatch(REGEX, text)),
    "choice": (by_extra(choice=CHOICES), lambda text: text in CHOICES),
    "grammar": (by_extra(grammar=GRAMMAR), is_sum),
}


def arguments(messages: Any, **more: Any) -> dict[str, Any]:
    extra = {"return_token_ids": True, **more.pop("extra_body", {})}
    return {
        "model": "model",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 120,
        "extra_body": extra,
        **more,
    }


@pytest.fixture(scope="module")
def mixed(server: Server) -> dict[str, Any]:
    """Answers to PLAIN one by one, and to all requests at once: each constraint greedily and with
    two seeds, between plain ones."""

    async def ask() -> dict[str, Any]:
        async with async_openai_client(server) as client:

            async def choice(**of: Any) -> Any:
                return (await client.chat.completions.create(**of)).choices[0]

            plain = [
                arguments([{"role": "user", "content": text}], max_tokens=30) for text in PLAIN
            ]
            found: dict[str, Any] = {"alone": [await choice(**one) for one in plain]}
            asks, names = [], []
            for number, seed in enumerate((None, 1, 2)):
                for name, (constraint, _) in CONSTRAINED.items():
                    sampled = {} if seed is None else {"temperature": 1.2, "seed": seed}
                    asks += [choice(**plain[len(asks) // 2 % len(PLAIN)])]
                    asks += [choice(**arguments(QUESTION, **constraint) | sampled)]
                    names += [(name, number)]
            answers = await asyncio.gather(*asks)
            found["plain"] = answers[::2]
            found["constrained"] = dict(zip(names, answers[1::2], strict=True))
            return found

    return asyncio.run(ask())


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("generative models", section, what)


@marked("structured outputs", "JSON schemas and objects, regular expressions, choices, grammars")
@pytest.mark.parametrize("name", list(CONSTRAINED))
def test_constrained(mixed: dict[str, Any], name: str) -> None:
    _, fits = CONSTRAINED[name]
    answers = [choice for (of, _), choice in mixed["constrained"].items() if of == name]
    finished = [choice for choice in answers if choice.finish_reason == "stop"]
    # A string within an object may be without end.
    assert finished == answers or (name == "object" and finished)
    for choice in finished:
        assert fits(choice.message.content), choice.message.content


@marked("structured outputs", "beside plain requests in one batch, whose answers do not change")
def test_the_others_are_not(mixed: dict[str, Any], model: LanguageModel) -> None:
    for number, choice in enumerate(mixed["plain"]):
        alone = mixed["alone"][number % len(PLAIN)]
        if choice.message.content == alone.message.content:
            continue
        # Only where transformers' own choice is a tie.
        prompt = model.chat([{"role": "user", "content": PLAIN[number % len(PLAIN)]}])
        for one in (choice, alone):
            model.check_greedy(prompt, one.model_dump()["token_ids"])


@marked("structured outputs", "one that cannot be compiled is refused with status 400")
def test_refused(openai_client: OpenAI) -> None:
    for constraint in ({"regex": "[0-9"}, {"grammar": "root ::= nothing"}):
        with pytest.raises(BadRequestError):
            openai_client.chat.completions.create(**arguments(QUESTION, **by_extra(**constraint)))
    (choice,) = openai_client.chat.completions.create(
        **arguments(QUESTION, **by_extra(choice=CHOICES))
    ).choices
    assert choice.message.content in CHOICES


def calls_of(stream: Any) -> list[tuple[str, str]]:
    """(name, arguments) of the calls in a stream."""
    found: dict[int, list[str]] = {}
    for part in stream:
        for delta in (call for choice in part.choices for call in choice.delta.tool_calls or []):
            call = found.setdefault(delta.index, ["", ""])
            call[0] += delta.function.name or ""
            call[1] += delta.function.arguments or ""
    return [(name, given) for name, given in found.values()]


@marked("tool calls", "a named tool, and `required`: arguments of a `strict` tool fit its schema")
@marked("tool calls", "`auto` with the parser `hermes`")
@marked("tool calls", "streamed calls equal the whole")
@pytest.mark.parametrize(
    ("choice", "more"),
    [
        ({"type": "function", "function": {"name": "weather"}}, {}),
        ({"type": "function", "function": {"name": "add"}}, {}),
        ("required", {}),
        # A model of this size calls no tool by itself.
        ("auto", by_extra(regex=CALL)),
    ],
    ids=["named weather", "named add", "required", "auto"],
)
def test_tool_calls(openai_client: OpenAI, choice: Any, more: dict[str, Any]) -> None:
    asked = arguments(QUESTION, tools=TOOLS, tool_choice=choice, **more)
    if choice == "required":
        asked["extra_body"]["parallel_tool_calls"] = False
    answer = openai_client.chat.completions.create(**asked).choices[0]
    calls = answer.message.tool_calls
    assert calls and not answer.message.content
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
    if isinstance(choice, dict):
        assert [call.function.name for call in calls] == [choice["function"]["name"]]
    asked["extra_body"].pop("return_token_ids")
    streamed = calls_of(openai_client.chat.completions.create(**asked, stream=True))
    whole = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    assert [(name, json.loads(given)) for name, given in streamed] == whole


@marked("tool calls", "`none` leaves the answer as it is without tools")
def test_no_tool_calls(openai_client: OpenAI) -> None:
    plain = arguments(QUESTION, max_tokens=20)
    (choice,) = openai_client.chat.completions.create(
        **plain, tools=TOOLS, tool_choice="none"
    ).choices
    (other,) = openai_client.chat.completions.create(**plain).choices
    assert not choice.message.tool_calls
    assert choice.message.content == other.message.content
