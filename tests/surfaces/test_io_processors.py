# SPDX-License-Identifier: Apache-2.0
"""The IO processor of examples/plugins around all-MiniLM-L6-v2: in `LLM` and behind `/pooling`.

What it must answer is computed by transformers. The model's `config.json` chooses one plugin, an
argument of the engine another.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import Run
from .served import Server

TOLERANCE = 1e-4
DOCUMENTS = [
    "Bread is made of flour, water and salt.",
    "The blue whale is the largest animal that has ever lived.",
    "A violin has four strings and is played with a bow.",
    "Rain falls from clouds.",
]
QUERIES = ["Which instrument is this?", "How do I bake?", "What is the weather like?", "whales"]
# Data and words of the error.
WRONG: list[tuple[Any, str]] = [
    ({"query": "sea"}, "an object with query and documents"),
    ({"query": "", "documents": ["sea"]}, "the query of a search"),
    ({"query": "sea", "documents": []}, "the documents of a search"),
    ({"query": "sea", "documents": ["sea", 5]}, "the documents of a search"),
    ("sea", "an object with query and documents"),
]


def searches() -> list[dict[str, Any]]:
    """Documents in another order for each query."""
    return [
        {"query": query, "documents": DOCUMENTS[number:] + DOCUMENTS[:number]}
        for number, query in enumerate(QUERIES)
    ]


@pytest.fixture(scope="module")
def engines(
    choosing: Path, processors_site: Path, run_program: Run, embedding_server: Server
) -> dict[str, Any]:
    """What the program with `LLM` gives, and a server, by name."""
    job = {"model": str(choosing), "searches": searches(), "wrong": [data for data, _ in WRONG]}
    offline, _ = run_program("pooling_engine.py", job, [processors_site])
    return {"offline": offline, "server": embedding_server}


@pytest.fixture(scope="module")
def expected(minilm: Path) -> list[list[dict[str, Any]]]:
    """Documents of each search, the likest first: means of hidden states, by their cosines."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm, dtype=torch.float32)

    def embed(text: str) -> torch.Tensor:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return hidden.mean(0)

    rankings = []
    for search in searches():
        query = embed(search["query"])
        scores = [
            float(torch.cosine_similarity(query, embed(text), 0)) for text in search["documents"]
        ]
        ranking = [{"index": index, "score": score} for index, score in enumerate(scores)]
        rankings.append(sorted(ranking, key=lambda one: -one["score"]))
    return rankings


def check(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [one["index"] for one in found] == [one["index"] for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert abs(one["score"] - other["score"]) < TOLERANCE


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("io processors", section, what)


@marked(
    "using one", "chosen by the argument `io_processor_plugin`, before the model's `config.json`"
)
@marked("using one", '`LLM.encode` with `pooling_task="plugin"`')
def test_offline(engines: dict[str, Any], expected: list[Any]) -> None:
    for found, wanted in zip(engines["offline"]["answers"], expected, strict=True):
        check(found, wanted)


@marked("using one", "chosen by the model's `config.json`")
@marked("using one", "`/pooling` with `data`, many requests at once, each with its own answer")
def test_served(engines: dict[str, Any], expected: list[Any]) -> None:
    server, asked = engines["server"], searches() * 3
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(
            pool.map(lambda data: server.ask("/pooling", {"model": "model", "data": data}), asked)
        )
    for (status, answer), wanted in zip(answers, expected * 3, strict=True):
        assert status == 200, answer
        check(answer["data"], wanted[::-1])


@marked("writing one", "outputs that come in another order are those of their prompts (async)")
def test_order(engines: dict[str, Any], expected: list[Any]) -> None:
    check(engines["offline"]["permuted"], expected[0])


@marked("errors", "data that `parse_data` refuses gives its words: ValueError, or status 400")
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_bad_data(engines: dict[str, Any], expected: list[Any], number: int) -> None:
    data, words = WRONG[number]
    error = engines["offline"]["wrong"][number]
    assert error.startswith("ValueError") and words in error
    status, answer = engines["server"].ask("/pooling", {"model": "model", "data": data})
    assert status == 400 and words in answer["error"]["message"]
    check(engines["offline"]["after"], expected[0])


@marked("errors", "one that raises after the model was asked fails its request; the engine goes on")
def test_a_mistake_afterwards(engines: dict[str, Any], expected: list[Any]) -> None:
    assert "a mistake in the plugin's post_process" in engines["offline"]["broken"]
    check(engines["offline"]["then"], expected[0])
    server = engines["server"]
    broken = {"query": "break", "documents": ["it"]}
    assert server.ask("/pooling", {"model": "model", "data": broken})[0] == 500
    status, answer = server.ask("/pooling", {"model": "model", "data": searches()[0]})
    assert status == 200
    check(answer["data"], expected[0][::-1])


@marked("errors", "a plugin that is not installed is refused at start, with the names there are")
@marked("errors", "one whose entry point raises is left out with a warning that names it")
def test_no_such_plugin(engines: dict[str, Any]) -> None:
    refused = engines["offline"]["refused"]
    assert "'nobody'" in refused and "document_search" in refused and "breaks" in refused
    assert "cannot_be_named" not in refused
    said = engines["server"].log.read_text()
    assert "Failed to load plugin cannot_be_named" in said
