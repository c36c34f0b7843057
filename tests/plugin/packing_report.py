# SPDX-License-Identifier: Apache-2.0
"""Starts an engine inside this process for each model, has it generate, touches its weights in the
ways that programs do, and prints what was seen as JSON.

Run by test_weight_packing.py in a subprocess: `python packing_report.py MODEL ...`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from safetensors.torch import load_file
from vllm import LLM, SamplingParams

from vllm_anvil.ops.packed_weight import PackedWeight


def main(path: str) -> dict[str, Any]:
    llm = LLM(
        path,
        max_model_len=256,
        max_num_seqs=8,
        seed=0,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.2,
        kv_cache_memory_bytes=16 << 20,
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    prompts = [
        {"prompt_token_ids": [(i * 7 + n) % 250 + 2 for i in range(n)]} for n in (100, 5, 33)
    ]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)

    def state() -> dict[str, Any]:
        outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
        return {
            "checksums": {
                name: int(tensor.flatten().view(torch.uint8).long().sum())
                for name, tensor in model.state_dict().items()
            },
            "tokens": [list(one.token_ids) for one in outputs],
            "logprobs": [[next(iter(e.values())).logprob for e in one.logprobs] for one in outputs],
        }

    parameters = dict(model.named_parameters())
    report: dict[str, Any] = {
        "packed": sorted(n for n, p in parameters.items() if isinstance(p, PackedWeight)),
        "plain": sorted(n for n, p in parameters.items() if not isinstance(p, PackedWeight)),
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "loaded": state(),
    }
    checkpoint = load_file(next(Path(path).glob("*.safetensors")))
    other = {name: tensor.roll(1, 0) * 1.5 for name, tensor in checkpoint.items()}
    runner.reload_weights(weights_iterator=iter(other.items()))
    report["reloaded"] = state()
    report["tied after reload"] = model.lm_head.weight is model.model.embed_tokens.weight
    report["packed after reload"] = sorted(
        n for n, p in model.named_parameters() if isinstance(p, PackedWeight)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("o_proj.weight"):
                parameter.copy_(parameter * 2)
            elif name.endswith("down_proj.weight"):
                parameter.data[3:7].mul_(3)
    report["changed"] = state()
    return report


if __name__ == "__main__":
    print("REPORT " + json.dumps([main(path) for path in sys.argv[1:]]))
