# SPDX-License-Identifier: Apache-2.0
"""Starts an engine inside this process for each model, generates with its attention layers fused
and then one op at a time, and prints what was called and what came out as JSON.

Run by test_attention_steps.py in a subprocess: `python fusion_report.py MODEL ...`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from torch.utils._python_dispatch import TorchDispatchMode
from vllm import LLM, SamplingParams

from vllm_anvil.plugin.op_arguments import fallbacks


class Calls(TorchDispatchMode):
    """How often each op of the device is called."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "anvil":
            self.count[func._opname] += 1
        return func(*args, **(kwargs or {}))


def main(path: str) -> dict[str, Any]:
    llm = LLM(
        path,
        max_model_len=256,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        seed=0,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.2,
        enforce_eager=True,  # replays of a step call nothing
        kv_cache_memory_bytes=16 << 20,
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    fused = {n: m for n, m in model.named_modules() if "forward" in vars(m)}
    steps = 0
    run_step = runner.execute_model

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += args[0].total_num_scheduled_tokens > 0
        return run_step(*args, **kwargs)

    runner.execute_model = counted
    prompts = [
        {"prompt_token_ids": [(i * 7 + n) % 250 + 2 for i in range(n)]} for n in (100, 5, 33)
    ]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)

    def generate() -> dict[str, Any]:
        nonlocal steps
        steps = 0
        fallbacks.clear()
        with Calls() as calls:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        first = [output.outputs[0] for output in outputs]
        return {
            "steps": steps,
            "calls": dict(calls.count),
            "fallbacks": [list(key) for key in fallbacks],
            "tokens": [list(one.token_ids) for one in first],
            "logprobs": [[next(iter(e.values())).logprob for e in one.logprobs] for one in first],
        }

    report: dict[str, Any] = {
        "layers": sorted(fused),
        "fused": generate(),
    }
    for module in fused.values():
        del module.forward
    report["apart"] = generate()
    return report


if __name__ == "__main__":
    print("REPORT " + json.dumps([main(path) for path in sys.argv[1:]]))
