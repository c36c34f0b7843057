# SPDX-License-Identifier: Apache-2.0
"""An IO processor: a query and documents in, the documents in the order of their likeness out.

    {"query": "...", "documents": ["...", ...]} -> [{"index": 2, "score": 0.83}, ...]

`index` counts the documents as they were sent, `score` is the cosine of the angle between the
embeddings. The model is any that the engine embeds texts with. Nothing is kept between a request's
prompts and its outputs, so that any number of requests may be under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.inputs import PromptType
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams

Ranking = list[dict[str, Any]]


@dataclass(frozen=True)
class Search:
    query: str
    documents: list[str]


class DocumentSearch(IOProcessor[Search, Ranking]):
    def parse_data(self, data: object) -> Search:
        """Raises ValueError, whose words reach who sent the data."""
        if not isinstance(data, dict) or data.keys() != {"query", "documents"}:
            raise ValueError("the data of a search is an object with query and documents")
        query, documents = data["query"], data["documents"]
        if not isinstance(query, str) or not query:
            raise ValueError("the query of a search is a text that is not empty")
        if (
            not isinstance(documents, list)
            or not documents
            or not all(isinstance(text, str) and text for text in documents)
        ):
            raise ValueError("the documents of a search are a list of texts, none of them empty")
        return Search(query, documents)

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """The model is asked for embeddings, whatever the data is called."""
        params = params or PoolingParams()
        params.task = "embed"
        return params

    def pre_process(
        self, prompt: Search, request_id: str | None = None, **kwargs: Any
    ) -> Sequence[PromptType]:
        return [prompt.query, *prompt.documents]

    def post_process(
        self,
        model_output: Sequence[PoolingRequestOutput],
        request_id: str | None = None,
        **kwargs: Any,
    ) -> Ranking:
        """Outputs come in the order of the prompts, the query's first."""
        vectors = torch.stack([output.outputs.data.float() for output in model_output])
        query, *documents = torch.nn.functional.normalize(vectors, dim=1)
        scores = [float(query @ document) for document in documents]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])
        return [{"index": index, "score": scores[index]} for index in best]
