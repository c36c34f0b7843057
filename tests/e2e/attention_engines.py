# SPDX-License-Identifier: Apache-2.0
"""Runs an engine for each kind of attention, one after another, in this process.

`python attention_engines.py JOB.json RESULT.json`. JOB: {"new_tokens", "prompts", "hybrid",
"encoder", "encoder_decoder": folders, "sounds": lengths, "starts": prompts of the decoder}.
RESULT: by kind, what was answered and which layers the served implementation computed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from attention_models import SAMPLING_RATE, sounds
from vllm import LLM, SamplingParams

from anvil_attention.serving import Served

ENGINE = {"dtype": "float32", "max_num_seqs": 4, "seed": 0, "kv_cache_memory_bytes": 4 << 20}
computed: set[str] = set()


def watch_layers() -> None:
    compute = Served.compute

    def watched(self: Served, call: Any, layer: str) -> None:
        computed.add(layer)
        compute(self, call, layer)

    Served.compute = watched  # type: ignore[method-assign]


def greedy(job: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=job["new_tokens"], ignore_eos=True, detokenize=False
    )


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def hybrid(job: dict[str, Any]) -> dict[str, Any]:
    """Prompts longer than a step, and again when their blocks are in the prefix cache."""
    llm = LLM(job["hybrid"], max_model_len=128, max_num_batched_tokens=32, block_size=4, **ENGINE)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    first = llm.generate(prompts, greedy(job), use_tqdm=False)
    again = llm.generate(prompts, greedy(job), use_tqdm=False)
    return {
        "groups": [type(g.kv_cache_spec).__name__ for gs in runner.attn_groups for g in gs],
        "tokens": tokens(first),
        "again": tokens(again),
        "cached": [output.num_cached_tokens for output in again],
    }


def encoder(job: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(job["encoder"], runner="pooling", max_model_len=128, **ENGINE)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    return {"embeddings": [o.outputs.embedding for o in llm.embed(prompts, use_tqdm=False)]}


def encoder_decoder(job: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(job["encoder_decoder"], max_model_len=64, **ENGINE)
    prompts = [
        {
            "encoder_prompt": {
                "prompt": "",
                "multi_modal_data": {"audio": (sound, SAMPLING_RATE)},
            },
            "decoder_prompt": {"prompt_token_ids": start},
        }
        for sound, start in zip(sounds(job["sounds"]), job["starts"], strict=True)
    ]
    return {"tokens": tokens(llm.generate(prompts, greedy(job), use_tqdm=False))}


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    watch_layers()
    result = {}
    for kind in (hybrid, encoder, encoder_decoder):
        computed.clear()
        result[kind.__name__] = kind(job) | {"layers": sorted(computed)}
        gc.collect()
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
