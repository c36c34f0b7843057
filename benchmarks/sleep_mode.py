# SPDX-License-Identifier: Apache-2.0
"""What an engine gives back when it sleeps at level 1, and how long it takes to wake.

    python benchmarks/sleep_mode.py [--model DIR] [--rounds 5] [--json]

returned    memory of the engine's process that is the operating system's again, of what weights and
            KV cache held; the cache was written all over before.
wake        from the call to an engine that answers, beside copying as many bytes as the weights
            into memory that is new, as a wake-up's is (`copy`), on all cores. The disk is not used:
            the operating system still has what was written.
sleep       for comparison; it waits for the disk.

In each round the two are timed one after the other. The tokens are checked after each wake-up.
Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING")

import torch
from vllm import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
KV_CACHE = 512 << 20


def resident() -> int:
    """Bytes of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10


def seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    torch.anvil.synchronize()
    return time.perf_counter() - begin


def copy_seconds(size: int) -> float:
    """Of a copy into memory that the operating system has just given."""
    source = torch.ones(size, dtype=torch.uint8, device="anvil")
    torch.anvil.synchronize()
    taken = seconds(source.clone)
    del source
    torch.anvil.empty_cache()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    llm = LLM(
        options.model,
        max_model_len=512,
        kv_cache_memory_bytes=KV_CACHE,
        enable_sleep_mode=True,
    )

    def tokens() -> list[int]:
        greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        (output,) = llm.generate("The capital of France is", greedy, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    expected = tokens()
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    for cache in worker.model_runner.kv_caches:
        cache.fill_(1)
    torch.anvil.synchronize()

    rounds: dict[str, list[float]] = {"returned": [], "sleep": [], "wake": [], "copy": []}
    for _ in range(options.rounds):
        held = {name: tag["allocated_bytes"] for name, tag in torch.anvil.memory_by_tag().items()}
        before = resident()
        rounds["sleep"].append(seconds(lambda: llm.sleep(level=1)))
        returned = before - resident()
        rounds["returned"].append(returned / (held["weights"] + held["kv_cache"]))
        rounds["copy"].append(copy_seconds(held["weights"]))
        rounds["wake"].append(seconds(llm.wake_up))
        if tokens() != expected:
            print("The engine's tokens are others than before it slept.", file=sys.stderr)
            return 1
        for cache in worker.model_runner.kv_caches:
            cache.fill_(1)
        torch.anvil.synchronize()
    figures = {name: statistics.median(values) for name, values in rounds.items()}
    ratios = [wake / copy for wake, copy in zip(rounds["wake"], rounds["copy"], strict=True)]
    figures |= {"wake / copy": statistics.median(ratios), "weights_bytes": held["weights"]}
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"weights {held['weights'] >> 20} MiB, KV cache {KV_CACHE >> 20} MiB")
        print(f"returned  {figures['returned']:.1%} of both")
        print(f"sleep     {figures['sleep'] * 1e3:.0f} ms")
        print(f"wake      {figures['wake'] * 1e3:.0f} ms")
        print(f"copy      {figures['copy'] * 1e3:.0f} ms; wake / copy {figures['wake / copy']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
