# SPDX-License-Identifier: Apache-2.0
"""Runs one engine in this process: `python engine_run.py JOB.json RESULT.json`.

JOB: {"engine": arguments of vllm.LLM, "requests": [{"token_ids": [...], "params": {...}}, ...]}.
RESULT: {"platform", "device_type", "runner", "has_triton", "sanitizer_reports",
"outputs": [{"token_ids", "prompt_logprobs"}, ...]}; the reports are this process's, so that they
are the engine's where VLLM_ENABLE_V1_MULTIPROCESSING=0.
A process of its own keeps engines apart; the environment chooses the platform.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(job_path: str, result_path: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    job = json.loads(Path(job_path).read_text())
    llm = LLM(**job["engine"])
    prompts: list[Any] = [{"prompt_token_ids": request["token_ids"]} for request in job["requests"]]
    params = [SamplingParams(**request["params"]) for request in job["requests"]]
    outputs = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        # Position 0 has no log-probability; at the others the prompt's own token is always present.
        given = output.prompt_logprobs or []
        outputs.append(
            {
                "token_ids": list(output.outputs[0].token_ids),
                "prompt_logprobs": [
                    entry[token].logprob
                    for token, entry in zip(output.prompt_token_ids, given, strict=False)
                    if entry is not None
                ],
            }
        )
    device = sys.modules.get("vllm_anvil.device")
    result = {
        "sanitizer_reports": device.sanitizer.reports() if device else [],
        "platform": type(current_platform).__name__,
        "device_type": current_platform.device_type,
        "runner": "v2" if llm.llm_engine.vllm_config.use_v2_model_runner else "v1",
        "has_triton": HAS_TRITON,
        "outputs": outputs,
    }
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
