# SPDX-License-Identifier: Apache-2.0
"""Embeddings, classes and scores, of whole texts and of each token, in `LLM` and by HTTP, are
transformers'. The embedding model is all-MiniLM-L6-v2, the others are small and random."""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import BadRequestError, OpenAI

from .conftest import Run
from .encoder_models import CLASSES, TOKEN_CLASSES, Encoder, make_bert
from .plugin_environment import environment
from .served import Server, serve

TOLERANCE = 1e-5
TEXTS = [
    "Which instrument has four strings?",
    "A violin has four strings and is played with a bow.",
    "Bread is made of flour, water and salt.",
    "Rain",
    "The blue whale is the largest animal that has ever lived. " * 4,
]


@pytest.fixture(scope="module")
def folders(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    kinds = {
        "classifier": ("BertForSequenceClassification", CLASSES),
        "tagger": ("BertForTokenClassification", TOKEN_CLASSES),
        "cross_encoder": ("BertForSequenceClassification", 1),
    }
    for name, (architecture, labels) in kinds.items():
        make_bert(root / name, minilm, architecture, labels)
    return {"embedder": minilm, **{name: root / name for name in kinds}}


@pytest.fixture(scope="module")
def found(
    folders: dict[str, Path],
    run_program: Run,
    at_once: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Any]]:
    """What the program with `LLM` gives, and a server of the classifier, by name."""
    job = {"texts": TEXTS, **{name: str(folder) for name, folder in folders.items()}}
    with contextlib.ExitStack() as stack:

        def start() -> Server:
            folder = tmp_path_factory.mktemp("server")
            options = ["--dtype", "float32"]
            return stack.enter_context(serve(folder, folders["classifier"], options, environment()))

        futures = at_once(
            {"offline": partial(run_program, "pooling_tasks.py", job, []), "server": start}
        )
        yield {"offline": futures["offline"].result()[0], "server": futures["server"].result()}


@pytest.fixture(scope="module")
def embedder(minilm: Path) -> Encoder:
    return Encoder(minilm, "AutoModel")


@pytest.fixture(scope="module")
def client(embedding_server: Server) -> Iterator[OpenAI]:
    web = httpx.Client(trust_env=False)
    with OpenAI(base_url=f"{embedding_server.root}/v1", api_key="none", http_client=web) as made:
        yield made


def close(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=TOLERANCE)


def marked(section: str, what: str) -> pytest.MarkDecorator:
    return pytest.mark.surface("pooling models", section, what)


@marked("embeddings", "`LLM.embed`: means with length 1, or as they are with `use_activation`")
def test_embed(found: dict[str, Any], embedder: Encoder) -> None:
    for number, text in enumerate(TEXTS):
        close(found["offline"]["embed"][number], embedder.embedding(text))
        close(found["offline"]["plain"][number], embedder.hidden(text).mean(0))


@marked("embeddings", "fewer dimensions are refused where the model was not trained for them")
@marked("model runner", "a pooling model generates nothing, and says so")
def test_refused(found: dict[str, Any], client: OpenAI) -> None:
    assert "matryoshka" in found["offline"]["dimensions"].lower()
    assert "--runner generate" in found["offline"]["generate"]
    with pytest.raises(BadRequestError, match="(?i)matryoshka"):
        client.embeddings.create(model="model", input=TEXTS[0], dimensions=32)


@marked("embeddings", "`/v1/embeddings` by the OpenAI client: texts and tokens, numbers and base64")
def test_embeddings_by_http(client: OpenAI, embedder: Encoder) -> None:
    wanted = [embedder.embedding(text) for text in TEXTS]
    tokens = [embedder.tokenizer(text)["input_ids"] for text in TEXTS]
    # The client itself asks for base64 where nothing is said.
    for given, how in ((TEXTS, {}), (TEXTS, {"encoding_format": "float"}), (tokens, {})):
        answer = client.embeddings.create(model="model", input=given, **how)
        assert [one.index for one in answer.data] == list(range(len(TEXTS)))
        for one, other in zip(answer.data, wanted, strict=True):
            close(one.embedding, other)
        assert answer.usage.prompt_tokens == sum(map(len, tokens))
    (raw,) = client.embeddings.create(model="model", input=TEXTS[0], encoding_format="base64").data
    data = base64.b64decode(raw.embedding)  # type: ignore[arg-type]
    close(struct.unpack(f"<{len(data) // 4}f", data), wanted[0])


@marked("token embeddings", '`LLM.encode` with `pooling_task="token_embed"`')
def test_token_embeddings(found: dict[str, Any], embedder: Encoder) -> None:
    for text, rows in zip(TEXTS, found["offline"]["token_embed"], strict=True):
        close(rows, torch.nn.functional.normalize(embedder.hidden(text), dim=-1))


@marked("classification", "`LLM.classify`, and `/classify` with the labels' names")
def test_classify(found: dict[str, Any], folders: dict[str, Path]) -> None:
    model = Encoder(folders["classifier"], "AutoModelForSequenceClassification")
    status, answer = found["server"].ask("/classify", {"model": "model", "input": TEXTS})
    assert status == 200, answer
    classes = set()
    for text, probabilities, one in zip(
        TEXTS, found["offline"]["classify"], answer["data"], strict=True
    ):
        wanted = model.probabilities(text)
        classes.add(int(wanted.argmax()))
        close(probabilities, wanted)
        close(one["probs"], wanted)
        assert one["num_classes"] == CLASSES
        assert one["label"] == model.model.config.id2label[int(wanted.argmax())]
    assert len(classes) > 1


@marked("token classification", '`LLM.encode` with `pooling_task="token_classify"`')
def test_token_classes(found: dict[str, Any], folders: dict[str, Path]) -> None:
    model = Encoder(folders["tagger"], "AutoModelForTokenClassification")
    for text, rows in zip(TEXTS, found["offline"]["token_classify"], strict=True):
        close(rows, model.probabilities(text))


@marked("scoring", "`LLM.score` with a cross encoder, and with embeddings by their cosine")
def test_score(found: dict[str, Any], folders: dict[str, Path], embedder: Encoder) -> None:
    model = Encoder(folders["cross_encoder"], "AutoModelForSequenceClassification")
    close(
        found["offline"]["cross_encoder"], torch.tensor([model.score(TEXTS[0], t) for t in TEXTS])
    )
    first = embedder.embedding(TEXTS[0])
    cosines = torch.stack([embedder.embedding(text) @ first for text in TEXTS])
    close(found["offline"]["score"], cosines)


@marked("scoring", "`/score` and `/rerank`, in the order of the scores")
def test_score_by_http(embedding_server: Server, embedder: Encoder) -> None:
    first = embedder.embedding(TEXTS[0])
    cosines = torch.stack([embedder.embedding(text) @ first for text in TEXTS[1:]])
    status, answer = embedding_server.ask(
        "/score", {"model": "model", "text_1": TEXTS[0], "text_2": TEXTS[1:]}
    )
    assert status == 200, answer
    close([one["score"] for one in answer["data"]], cosines)
    status, answer = embedding_server.ask(
        "/rerank", {"model": "model", "query": TEXTS[0], "documents": TEXTS[1:], "top_n": 3}
    )
    assert status == 200, answer
    order = cosines.argsort(descending=True)[:3]
    assert [one["index"] for one in answer["results"]] == order.tolist()
    close([one["relevance_score"] for one in answer["results"]], cosines[order])
    texts = [one["document"]["text"] for one in answer["results"]]
    assert texts == [TEXTS[1 + index] for index in order]
