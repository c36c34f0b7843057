# SPDX-License-Identifier: Apache-2.0
"""Runs engines one after the other: `python parallel_run.py JOBS.json FOLDER`.

JOBS: {name: {"engine": arguments of the engine, "requests": [{"token_ids", "max_tokens"}, ...]}}.
For each job FOLDER/name.json: {"outputs": [{"token_ids", "logprobs", "gaps", "prompt_logprobs"},
...], "again": the same of the first request alone, "after_dummy_step": once more after a step
without requests, "ranks": what rank_report.py says of each rank after "again"}. With replicas, the
first request is given to each of them. Each engine has a process of its own, which is forked: so
the engine is imported once for all.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from engine_forks import run_each


def described(output: Any) -> dict[str, Any]:
    (one,) = output.outputs
    prompt = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    sampled = zip(one.token_ids, one.logprobs, strict=True)
    best = [sorted((e.logprob for e in entry.values()), reverse=True) for entry in one.logprobs]
    return {
        "token_ids": list(one.token_ids),
        "logprobs": [entry[t].logprob for t, entry in sampled],
        "gaps": [first - second for first, second, *_ in best],
        # Position 0 has none.
        "prompt_logprobs": [entry[t].logprob for t, entry in prompt if entry is not None],
    }


def params(request: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0,
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
    )


class Offline:
    """`LLM`, with the methods of `Online`."""

    def __init__(self, engine: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**engine)

    async def generate(self, requests: list[dict[str, Any]]) -> list[Any]:
        prompts: list[Any] = [{"prompt_token_ids": one["token_ids"]} for one in requests]
        return self.llm.generate(prompts, [params(one) for one in requests], use_tqdm=False)

    async def call(self, method: str, *arguments: Any) -> None:
        self.llm.collective_rpc(method, args=arguments)

    async def dummy_step(self) -> None:
        self.llm.collective_rpc("execute_dummy_batch")


class Online:
    """`AsyncLLM`, which has replicas; requests go to them in turn."""

    def __init__(self, engine: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.replicas = engine["data_parallel_size"]
        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine))
        self.count = 0

    async def generate(self, requests: list[dict[str, Any]]) -> list[Any]:
        return await asyncio.gather(*[self.one(request) for request in requests])

    async def one(self, request: dict[str, Any]) -> Any:
        prompt: Any = {"prompt_token_ids": request["token_ids"]}
        number = self.count
        self.count += 1
        outputs = self.llm.generate(
            prompt, params(request), str(number), data_parallel_rank=number % self.replicas
        )
        return [output async for output in outputs][-1]

    async def call(self, method: str, *arguments: Any) -> None:
        await self.llm.collective_rpc(method, args=arguments)

    async def dummy_step(self) -> None:
        await self.llm.collective_rpc("execute_dummy_batch")


async def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    replicas = job["engine"].get("data_parallel_size", 1)
    engine = (Online if replicas > 1 else Offline)(
        {"worker_extension_cls": "rank_report.RankReport", **job["engine"]}
    )
    requests = job["requests"]
    outputs = await engine.generate(requests)
    await engine.call("count_steps")
    # One for each replica.
    again = await engine.generate(requests[:1] * replicas)
    ranks = folder / "ranks"
    ranks.mkdir()
    await engine.call("write_report", str(ranks))
    await engine.dummy_step()
    after = await engine.generate(requests[:1] * replicas)
    return {
        "outputs": [described(one) for one in outputs],
        "again": [described(one) for one in again],
        "after_dummy_step": [described(one) for one in after],
        "ranks": [json.loads(file.read_text()) for file in ranks.iterdir()],
    }


def main(jobs_path: str, results: str) -> None:
    def answer(name: str, job: dict[str, Any]) -> dict[str, Any]:
        folder = Path(results, f"{name}-files")
        folder.mkdir()
        return asyncio.run(run(job, folder))

    run_each(jobs_path, results, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
