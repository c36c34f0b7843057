# SPDX-License-Identifier: Apache-2.0
"""`vllm.LLM` with processors loaded in every way: `python offline_engine.py JOB.json RESULT.json`.

JOB: {"engine": arguments of vllm.LLM, "requests": [{"token_ids", "params"}, ...], "wrong": params
of requests that are not admitted}. RESULT: {"refused": what an engine with a processor of the other
interface is refused with, "wrong": what each of those requests fails with, "outputs":
[{"token_ids", "logprobs"}, ...], "pre_emptions"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from processors import FromClass, OfV1
from vllm import LLM, SamplingParams


def error_of(call: Any) -> str | None:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def described(output: Any) -> dict[str, Any]:
    one = output.outputs[0]
    chosen = zip(one.token_ids, one.logprobs or [], strict=False)
    return {
        "token_ids": list(one.token_ids),
        "logprobs": [entries[token].logprob for token, entries in chosen],
    }


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    names = job["engine"].pop("logits_processors")
    result: dict[str, Any] = {
        "refused": {
            "a class": error_of(lambda: LLM(**job["engine"], logits_processors=[OfV1])),
            "a name": error_of(lambda: LLM(**job["engine"], logits_processors=["processors:OfV1"])),
            "no module": error_of(lambda: LLM(**job["engine"], logits_processors=["nowhere:No"])),
            "no path": error_of(lambda: LLM(**job["engine"], logits_processors=["nowhere.No"])),
        }
    }
    llm = LLM(**job["engine"], logits_processors=[*names, FromClass], disable_log_stats=False)
    prompt: Any = {"prompt_token_ids": [5, 6, 7]}
    result["wrong"] = [
        error_of(lambda p=params: llm.generate(prompt, SamplingParams(**p), use_tqdm=False))
        for params in job["wrong"]
    ]
    prompts: list[Any] = [{"prompt_token_ids": one["token_ids"]} for one in job["requests"]]
    params = [SamplingParams(**one["params"]) for one in job["requests"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    result["outputs"] = [described(one) for one in outputs]
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    result["pre_emptions"] = metrics["vllm:num_preemptions"].value
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
