# SPDX-License-Identifier: Apache-2.0
"""Runs one engine in this process: `python engine_run.py JOB.json RESULT.json`.

JOB: {"engine": arguments of vllm.LLM, "requests": [{"token_ids": [...], "params": {...}}, ...],
"batches": lists of numbers of requests that run together, by default one of all}.
RESULT: {"platform", "device_type", "runner", "has_triton", "sanitizer_reports", "backends",
"forwards", "draft_forwards", "by_batch": both of each batch, "overlaps": whether steps are
scheduled ahead, "counters": of the engine, by name, where the job has disable_log_stats false,
"outputs": [{"token_ids", "cached", "prompt_logprobs", "completions"}, ...]} in the order of the
batches; the reports, the names of the attention backends and how often the Python of the model, and
of the one that drafts for it, ran for the requests are this process's, so that they are the
engine's where VLLM_ENABLE_V1_MULTIPROCESSING=0.
A process of its own keeps engines apart; the environment chooses the platform.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def sampling_params(params: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    structured = params.get("structured_outputs")
    if structured is not None:
        params = {**params, "structured_outputs": StructuredOutputsParams(**structured)}
    for name in ("logit_bias",):  # JSON has strings for keys
        if name in params:
            params = {**params, name: {int(key): value for key, value in params[name].items()}}
    return SamplingParams(**params)


def described(output: Any) -> dict[str, Any]:
    # Position 0 has no log-probability; at the others the prompt's own token is always present.
    given = output.prompt_logprobs or []
    return {
        "token_ids": list(output.outputs[0].token_ids),
        "cached": output.num_cached_tokens,
        "prompt_logprobs": [
            entry[token].logprob
            for token, entry in zip(output.prompt_token_ids, given, strict=False)
            if entry is not None
        ],
        "completions": [
            {
                "token_ids": list(one.token_ids),
                "text": one.text,
                "finish_reason": one.finish_reason,
                "stop_reason": one.stop_reason,
                "logprobs": [
                    {token: (entry.logprob, entry.rank) for token, entry in entries.items()}
                    for entries in one.logprobs or []
                ],
            }
            for one in output.outputs
        ],
    }


def model_runner(llm: Any) -> Any:
    """Of an engine in this process; None where its worker has a process of its own."""
    executor = getattr(llm.llm_engine, "model_executor", None)
    worker = getattr(executor, "driver_worker", None)
    return None if worker is None else worker.worker.model_runner


def backends(llm: Any) -> list[str]:
    """Names of the attention backends of an engine in this process."""
    runner = model_runner(llm)
    if runner is None:
        return []
    return sorted({group.backend.get_name() for one in runner.attn_groups for group in one})


def models(llm: Any) -> dict[str, Any]:
    """The model and the one that drafts for it, of an engine in this process."""
    runner = model_runner(llm)
    if runner is None:
        return {}
    draft = getattr(getattr(runner, "speculator", None), "model", None)
    return {"model": runner.get_model()} | ({} if draft is None else {"draft": draft})


def counters(llm: Any) -> dict[str, float]:
    found = llm.get_metrics()
    return {metric.name: metric.value for metric in found if hasattr(metric, "value")}


def run(job: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    llm = LLM(**job["engine"])
    requests = job["requests"]
    count: Counter[str] = Counter()
    for name, model in models(llm).items():
        model.register_forward_pre_hook(lambda *_, name=name: count.update([name]))
    outputs, by_batch = [], []
    for batch in job.get("batches", [list(range(len(requests)))]):
        chosen = [requests[number] for number in batch]
        prompts: list[Any] = [{"prompt_token_ids": one["token_ids"]} for one in chosen]
        params = [sampling_params(one["params"]) for one in chosen]
        before = Counter(count)
        outputs += [described(one) for one in llm.generate(prompts, params, use_tqdm=False)]
        by_batch.append([count[name] - before[name] for name in ("model", "draft")])
    device = sys.modules.get("vllm_anvil.device")
    return {
        "sanitizer_reports": device.sanitizer.reports() if device else [],
        "platform": type(current_platform).__name__,
        "device_type": current_platform.device_type,
        "runner": "v2" if llm.llm_engine.vllm_config.use_v2_model_runner else "v1",
        "has_triton": HAS_TRITON,
        "backends": backends(llm),
        "forwards": count["model"],
        "draft_forwards": count["draft"],
        "by_batch": by_batch,
        "overlaps": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
        "counters": {} if job["engine"].get("disable_log_stats", True) else counters(llm),
        "outputs": outputs,
    }


def main(job_path: str, result_path: str) -> None:
    result = run(json.loads(Path(job_path).read_text()))
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
