# SPDX-License-Identifier: Apache-2.0
"""Documents searched by an embedding model with an IO processor: `python io_processor.py MODEL`.

MODEL embeds texts, all-MiniLM-L6-v2 for instance. As a server it is started with
`--io-processor-plugin document_search`, and asked by POST /pooling with {"data": {...}}.
"""

import sys

from vllm import LLM

DOCUMENTS = [
    "Bread is made of flour, water and salt.",
    "The blue whale is the largest animal that has ever lived.",
    "A violin has four strings.",
]


def main(model: str) -> None:
    llm = LLM(model, io_processor_plugin="document_search")
    for query in ("Which instrument is this?", "How do I bake?", "How big do animals get?"):
        data = {"query": query, "documents": DOCUMENTS}
        (output,) = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)
        best = output.outputs[0]
        print(f"{query} {best['score']:.2f} {DOCUMENTS[best['index']]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
