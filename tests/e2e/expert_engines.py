# SPDX-License-Identifier: Apache-2.0
"""Runs engines one after another, in this process and its workers.

`python expert_engines.py JOB.json RESULT.json`. JOB: {"prompts", "new_tokens", "forced": further
texts, "engines": name -> arguments of vllm.LLM}. RESULT: by name, {"tokens", "logprobs" of these,
"forced": log-probabilities of all tokens of those texts but the first, "steps" in which the model's
Python ran for the prompts (null where it runs in another process), "fallbacks"}.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 8 << 20,
    "disable_log_stats": True,
}


def run(job: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    from vllm_anvil.plugin import op_arguments

    llm = LLM(**(ENGINE | arguments))
    executor = getattr(llm.llm_engine, "model_executor", None)
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    steps = None if worker is None else 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    if worker is not None:
        worker.model_runner.get_model().register_forward_pre_hook(count)
    greedy = SamplingParams(
        temperature=0, max_tokens=job["new_tokens"], ignore_eos=True, detokenize=False, logprobs=1
    )
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]], greedy, use_tqdm=False
    )
    taken = steps
    read = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    texts: list[Any] = [{"prompt_token_ids": text} for text in job["forced"]]
    forced = llm.generate(texts, read, use_tqdm=False) if texts else []
    return {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "logprobs": [
            [
                entries[token].logprob
                for token, entries in zip(
                    one.outputs[0].token_ids, one.outputs[0].logprobs, strict=True
                )
            ]
            for one in outputs
        ],
        "forced": [
            [
                entries[token].logprob
                for token, entries in zip(text[1:], one.prompt_logprobs[1:], strict=True)
            ]
            for text, one in zip(job["forced"], forced, strict=True)
        ],
        "steps": taken,
        "fallbacks": [" ".join(key) for key in op_arguments.fallbacks],
    }


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    result = {}
    for name, arguments in job["engines"].items():
        result[name] = run(job, arguments)
        gc.collect()
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
