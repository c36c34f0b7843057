# SPDX-License-Identifier: Apache-2.0
"""Serves with Ray until a rank is killed: `python ray_run.py JOB.json`.

JOB: {"engine": arguments of vllm.LLM, "prompts": lists of token ids, "tokens": how many new ones}.
Prints a line of JSON that begins with ANSWERED once the prompts are answered, waits for a line on
standard input, generates on, and prints a line that begins with ENDED and has the engine's error.
Where standard input ends instead, the engine is ended in an orderly way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def where(worker: Any) -> dict[str, Any]:
    """Of one rank: its host, device and environment, and how its group exchanges data."""
    import os

    import ray
    import torch
    from vllm.distributed import get_tp_group

    from vllm_anvil.device.distributed import backend_of

    properties = torch.anvil.get_device_properties(worker.device)
    backend = backend_of(get_tp_group().device_group)
    return {
        "rank": worker.rank,
        "host": ray.util.get_node_ip_address(),
        "device": properties.physical_index,
        "cores": sorted(properties.cores),
        "torch_threads": torch.get_num_threads(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("ANVIL_", "OMP_"))},
        "fallback_reason": backend.fallback_reason,
    }


def count_forwards(model: Any) -> None:
    model.forwards_counted = 0

    def count(*_: Any) -> None:
        model.forwards_counted += 1

    model.register_forward_pre_hook(count)


def counted(model: Any) -> int:
    return int(model.forwards_counted)


def main(job_path: str) -> None:
    import ray_run as importable  # ranks find functions by their module
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_path).read_text())
    llm = LLM(**job["engine"])
    params = SamplingParams(max_tokens=job["tokens"], temperature=0, ignore_eos=True)
    prompts: list[Any] = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]
    llm.apply_model(importable.count_forwards)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    report = {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "forwards": llm.apply_model(importable.counted),
        "ranks": llm.collective_rpc(importable.where),
    }
    print("ANSWERED", json.dumps(report), flush=True)
    if not sys.stdin.readline():
        return
    try:
        while True:
            llm.generate(prompts, params, use_tqdm=False)
    except Exception as error:
        print("ENDED", json.dumps(f"{type(error).__name__}: {error}"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
