# SPDX-License-Identifier: Apache-2.0
"""Embeddings by the OpenAI client, and documents ranked: `python embeddings.py URL`.

The server was started with `--served-model-name model` and a model that embeds texts.
"""

import sys

import httpx
from openai import OpenAI

QUERY = "How big do animals get?"
DOCUMENTS = [
    "Bread is made of flour, water and salt.",
    "The blue whale is the largest animal that has ever lived.",
    "A violin has four strings.",
]


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    query, *documents = (
        one.embedding
        for one in client.embeddings.create(model="model", input=[QUERY, *DOCUMENTS]).data
    )
    for text, embedding in zip(DOCUMENTS, documents, strict=True):
        cosine = sum(a * b for a, b in zip(query, embedding, strict=True))
        print(f"cosine {cosine:.3f} {text}")
    body = {"model": "model", "query": QUERY, "documents": DOCUMENTS, "top_n": 1}
    (best,) = httpx.post(f"{url}/rerank", json=body).json()["results"]
    print(f"best {best['relevance_score']:.3f} {best['document']['text']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
