# SPDX-License-Identifier: Apache-2.0
"""Starts one engine inside this process, looks at everything, and prints it as JSON.

Run by test_engine.py in a subprocess: `python engine_report.py MODEL`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.sampling_params import StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens(outputs: list) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def refused(call) -> str:  # type: ignore[no-untyped-def]
    try:
        call()
    except NotImplementedError as error:
        return str(error)
    return "was accepted"


def main(model: str) -> dict:
    out: dict = {}
    # Run after what the worker registers, as the last registered is run first.
    atexit.register(lambda: print("LEFT TO ITSELF", gc.get_freeze_count()))
    llm = LLM(model, max_model_len=256, max_num_batched_tokens=64, max_num_seqs=8, seed=0)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    runner = worker.model_runner

    out["worker"] = type(worker).__name__
    out["runner"] = type(runner).__name__
    out["device"] = str(worker.device)
    out["backends"] = sorted({g.backend.get_name() for gs in runner.attn_groups for g in gs})
    out["weights"] = sorted({str(p.device) for p in worker.get_model().parameters()})
    out["cache"] = sorted({str(t.device) for t in runner.kv_caches})
    out["threads"] = torch.get_num_threads()
    out["cores"] = len(torch.anvil.get_device_properties(worker.device.index).cores)
    out["tags"] = torch.anvil.memory_summary()
    out["total"] = torch.anvil.get_device_properties(0).total_memory
    out["free"] = torch.anvil.mem_get_info(0)[0]
    out["requested"] = worker.requested_memory
    out["kv_bytes"] = sum(t.nbytes for t in runner.kv_caches)
    out["available"] = worker.available_kv_cache_memory_bytes
    out["peak_activation"] = worker.peak_activation_memory

    # A prompt longer than max_num_batched_tokens is prefilled in chunks; again, its blocks are
    # found in the prefix cache; alone or in a batch, greedy tokens are the same.
    prompts = [
        {"prompt_token_ids": [(i * 7 + n) % 250 + 2 for i in range(n)]} for n in (200, 5, 33)
    ]
    out["first"] = tokens(llm.generate(prompts, GREEDY, use_tqdm=False))
    again = llm.generate(prompts, GREEDY, use_tqdm=False)
    out["again"] = tokens(again)
    out["cached"] = again[0].num_cached_tokens
    out["alone"] = [tokens(llm.generate(p, GREEDY, use_tqdm=False))[0] for p in prompts]

    # A request of exactly the longest length completes.
    full = SamplingParams(temperature=0, max_tokens=56, ignore_eos=True)
    out["longest"] = len(tokens(llm.generate(prompts[0], full, use_tqdm=False))[0])
    # Sampling with every filter, and with a seed of its own.
    mixed = SamplingParams(
        temperature=0.8,
        top_k=20,
        top_p=0.9,
        min_p=0.01,
        seed=3,
        max_tokens=8,
        logprobs=2,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
    )
    sampled = [tokens(llm.generate(prompts[1], mixed, use_tqdm=False)) for _ in range(2)]
    out["seeded"] = sampled[0] == sampled[1]

    # A structured request between plain ones.
    choice = SamplingParams(
        temperature=0,
        max_tokens=8,
        structured_outputs=StructuredOutputsParams(choice=["yes", "no"]),
    )
    plain = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    batch = [prompts[2], prompts[1], prompts[2]]
    mixed_outputs = llm.generate(batch, [plain, choice, plain], use_tqdm=False)
    out["chosen"] = mixed_outputs[1].outputs[0].text
    out["beside"] = [tokens(mixed_outputs)[i] for i in (0, 2)]

    # Calls that the engine makes by name.
    rpc = llm.collective_rpc
    out["health"] = rpc("check_health")
    out["tasks"] = [list(tasks) for tasks in rpc("get_supported_tasks")]
    out["layouts"] = rpc("get_supported_kv_cache_layouts")
    layout = worker.cache_config.kv_cache_layout
    out["set_layout"] = rpc("set_kv_cache_layout", args=(layout,)) if layout else [None]
    out["update_max_model_len"] = rpc("update_max_model_len", args=(256,))
    out["reset_encoder_cache"] = rpc("reset_encoder_cache")
    out["initialize_cache"] = rpc("initialize_cache", args=(worker.cache_config.num_gpu_blocks, 0))
    with set_current_vllm_config(worker.vllm_config):
        out["dummy_batch"] = rpc("execute_dummy_batch")
    out["after"] = tokens(llm.generate(prompts, GREEDY, use_tqdm=False))

    # The end: everything the engine held goes back, and again changes nothing.
    del runner
    worker.shutdown()
    worker.shutdown()
    del worker, llm
    gc.collect()
    torch.accelerator.empty_cache()
    out["held_after_shutdown"] = torch.anvil.memory_allocated()
    return out


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(sys.argv[1])))
