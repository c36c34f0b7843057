# SPDX-License-Identifier: Apache-2.0
"""`vllm.LLM` with pooling models, one after another in this process:
`python pooling_tasks.py JOB.json RESULT.json`.

JOB: {"texts", "embedder", "classifier", "tagger", "cross_encoder": folders}. RESULT: {"embed",
"plain": embeddings of the texts, with length 1 and as they are, "score": the first text with each,
"dimensions": the error of fewer dimensions, "generate": that of generation, "token_embed",
"classify", "token_classify": of the texts, "cross_encoder": the first text with each}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from offline_engine import error_of
from vllm import LLM, PoolingParams
from vllm.config import PoolerConfig

ENGINE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8}


def embedder(model: str, texts: list[str]) -> dict[str, Any]:
    llm = LLM(model, **ENGINE)
    plain = PoolingParams(use_activation=False)

    def embed(params: PoolingParams | None = None) -> list[list[float]]:
        outputs = llm.embed(texts, pooling_params=params, use_tqdm=False)
        return [output.outputs.embedding for output in outputs]

    scores = llm.score(texts[0], texts, use_tqdm=False)
    return {
        "embed": embed(),
        "plain": embed(plain),
        "score": [output.outputs.score for output in scores],
        "dimensions": error_of(lambda: embed(PoolingParams(dimensions=32))),
        "generate": error_of(lambda: llm.generate("one", use_tqdm=False)),
    }


def by_token(model: str, texts: list[str], task: Any) -> dict[str, Any]:
    llm = LLM(model, **ENGINE, pooler_config=PoolerConfig(task=task))
    outputs = llm.encode(texts, pooling_task=task, use_tqdm=False)
    return {task: [output.outputs.data.tolist() for output in outputs]}


def classifier(model: str, texts: list[str]) -> dict[str, Any]:
    outputs = LLM(model, **ENGINE).classify(texts, use_tqdm=False)
    return {"classify": [output.outputs.probs for output in outputs]}


def cross_encoder(model: str, texts: list[str]) -> dict[str, Any]:
    outputs = LLM(model, **ENGINE).score(texts[0], texts, use_tqdm=False)
    return {"cross_encoder": [output.outputs.score for output in outputs]}


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    texts, result = job["texts"], {}
    for run in (
        lambda: embedder(job["embedder"], texts),
        lambda: by_token(job["embedder"], texts, "token_embed"),
        lambda: classifier(job["classifier"], texts),
        lambda: by_token(job["tagger"], texts, "token_classify"),
        lambda: cross_encoder(job["cross_encoder"], texts),
    ):
        result |= run()
        gc.collect()
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
