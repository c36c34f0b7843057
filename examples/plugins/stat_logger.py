# SPDX-License-Identifier: Apache-2.0
"""Stat loggers, Anvil's and one's own, in an AsyncLLM: `python stat_logger.py MODEL`.

Anvil's is found by its entry point and tells of the device; the one of this file is given to the
engine, and counts tokens.
"""

import asyncio
import sys

from prometheus_client import REGISTRY, generate_latest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase


class CountTokens(StatLoggerBase):
    """What `record` is given is the engine's, of each step with outputs."""

    tokens = 0

    def __init__(self, vllm_config, engine_index=0): ...

    def log_engine_initialized(self): ...

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        if iteration_stats is not None:
            CountTokens.tokens += iteration_stats.num_generation_tokens


async def main(model: str) -> None:
    arguments = AsyncEngineArgs(model, max_model_len=256)
    engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[CountTokens])
    try:
        params = SamplingParams(temperature=0, max_tokens=16)
        async for output in engine.generate("The sea is", params, "one"):
            text = output.outputs[0].text
        print(f"{text!r}: {CountTokens.tokens} tokens")
        await engine.do_log_stats()
        for line in generate_latest(REGISTRY).decode().splitlines():
            if line.startswith("anvil:"):
                print(line)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
