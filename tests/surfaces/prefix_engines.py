# SPDX-License-Identifier: Apache-2.0
"""Engines with and without a prefix cache, with steps of several sizes, one after another in this
process: `python prefix_engines.py JOB.json RESULT.json`.

JOB: {"engine": arguments of vllm.LLM, "variants": more of them by name, "requests": [{"token_ids",
"params"}, ...], "longest": arguments of an engine whose cache decides on the longest length}.
RESULT: {"variants": by name, {"first": outputs of the requests, one after another, "again": all at
once, "salted": of the first with a salt of its own, "reset": of the first after the cache was
emptied, "queries", "hits", "pre_emptions": the engine's counters before "salted"}, "longest":
{"length", "outputs": of two requests of that length, "refused": errors of one that is longer and
of one that leaves no room, "defaults": parameters that the engine takes by itself, "by default":
an output with them}}. An output is {"token_ids", "cached", "logprobs", "prompt_logprobs"}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import offline_engine
from vllm import LLM, SamplingParams

COUNTERS = {
    "queries": "vllm:prefix_cache_queries",
    "hits": "vllm:prefix_cache_hits",
    "pre_emptions": "vllm:num_preemptions",
}


def described(output: Any) -> dict[str, Any]:
    # Position 0 has no log-probability; at the others the prompt's own token is always present.
    given = zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=False)
    return {
        **offline_engine.described(output),
        "cached": output.num_cached_tokens,
        "prompt_logprobs": [entry[token].logprob for token, entry in given if entry is not None],
    }


def ask(llm: LLM, requests: list[dict[str, Any]], **of_prompt: Any) -> list[dict[str, Any]]:
    prompts: list[Any] = [{"prompt_token_ids": one["token_ids"], **of_prompt} for one in requests]
    params = [SamplingParams(**one["params"], detokenize=False) for one in requests]
    return [described(output) for output in llm.generate(prompts, params, use_tqdm=False)]


def variant(engine: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    llm = LLM(**engine, disable_log_stats=False)
    result: dict[str, Any] = {
        "first": [ask(llm, [request])[0] for request in requests],
        "again": ask(llm, requests),
    }
    counted = {metric.name: metric for metric in llm.get_metrics()}
    result |= {name: counted[of].value for name, of in COUNTERS.items()}
    result["salted"] = ask(llm, requests[:1], cache_salt="of this request")
    llm.reset_prefix_cache()
    result["reset"] = ask(llm, requests[:1])
    return result


def longest(engine: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(**engine)
    length = llm.model_config.max_model_len
    tokens = [(7 * number) % 40000 + 100 for number in range(length + 1)]

    def request(prompt: int, new: int, start: int = 0) -> dict[str, Any]:
        params = {"temperature": 0, "max_tokens": new, "ignore_eos": True, "logprobs": 0}
        return {"token_ids": tokens[start : start + prompt], "params": params}

    refused = [request(length + 1, 1), request(length, 1)]
    defaults = llm.get_default_sampling_params()
    return {
        "length": length,
        "requests": [request(length - 9, 9), request(3, length - 3, 1)],
        "outputs": ask(llm, [request(length - 9, 9), request(3, length - 3, 1)]),
        "refused": [offline_engine.error_of(lambda r=one: ask(llm, [r])) for one in refused],
        "defaults": {
            name: getattr(defaults, name) for name in ("temperature", "top_k", "repetition_penalty")
        },
        "by default": len(
            llm.generate({"prompt_token_ids": [5, 6, 7]}, use_tqdm=False)[0].outputs[0].token_ids
        ),
    }


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    variants = {}
    for name, options in job["variants"].items():
        variants[name] = variant(job["engine"] | options, job["requests"])
        gc.collect()
    result = {"variants": variants, "longest": longest(job["engine"] | job["longest"])}
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
