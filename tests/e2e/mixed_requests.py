# SPDX-License-Identifier: Apache-2.0
"""Serves requests one by one, then many at once: `python mixed_requests.py JOB.json RESULT.json`.

JOB: {"engine": arguments of AsyncEngineArgs, "requests": [{"token_ids", "params"}, ...],
"phases": [[{"waiting", "clients": [{"request", "leave"}, ...]}, ...], ...], "tie"}. A phase is a
list of bursts; a burst arrives when no more than `waiting` clients are unfinished. `request` is the
number of what a client asks, `leave` None or {"how", "after"}: "cancel" cancels it `after` so many
turns of the event loop, "close" its stream of outputs and "abort" the request after so many tokens.

RESULT: {"engine": what was running, "alone": outputs in the order of the requests, "served":
outputs in the order of the clients, "nudged": by the number of each client whose tokens are others
than alone, the outputs alone with its first other token's logit raised by `tie`, and with the
expected token's lowered by it, "idle": what the engine held before the load and after each phase,
"pre_emptions"}. An output is {"token_ids", "finish_reason", "stop_reason", "logprobs",
"prompt_logprobs"}; its finish_reason is None where the client did not wait for the end.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from engine_run import sampling_params
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

Output = dict[str, Any]


class Held:
    """A base class that the engine's worker gets: what it holds, and its process."""

    model_runner: Any

    def held(self) -> dict[str, Any]:
        import torch

        gc.collect()
        torch.accelerator.synchronize()
        lines = Path("/proc/self/status").read_text().splitlines()
        resident = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
        return {
            "device": torch.accelerator.current_accelerator().type,  # type: ignore[union-attr]
            "requests": self.model_runner.req_states.num_reqs,
            "allocated": torch.accelerator.memory_allocated(),
            "resident": int(resident) << 10,
        }


class PreEmptions(StatLoggerBase):
    """Counts them."""

    count = 0

    def __init__(self, *_: Any) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if iteration_stats is not None:
            PreEmptions.count += iteration_stats.num_preempted_reqs


def described(output: Any) -> Output:
    """The last output that a client saw, None for one that saw none."""
    if output is None:
        return {"token_ids": [], "finish_reason": None}
    one = output.outputs[0]
    given = output.prompt_logprobs or []
    return {
        "token_ids": list(one.token_ids),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
        "logprobs": [
            {token: entry.logprob for token, entry in entries.items()}
            for entries in one.logprobs or []
        ],
        # Position 0 has none; at the others the prompt's own token is always present.
        "prompt_logprobs": [
            entry[token].logprob
            for token, entry in zip(output.prompt_token_ids, given, strict=False)
            if entry is not None
        ],
    }


class Clients:
    """Of one engine, each with a name of its own."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine
        self.numbers = itertools.count()

    async def ask(self, request: dict[str, Any], leave: dict[str, Any] | None = None) -> Output:
        name = f"client {next(self.numbers)}"
        prompt: Any = {"prompt_token_ids": request["token_ids"]}
        stream = self.engine.generate(prompt, sampling_params(request["params"]), name)
        last = None
        async for last in stream:
            if last.request_id != name or last.prompt_token_ids != request["token_ids"]:
                raise RuntimeError(f"{name} was given an output of {last.request_id}")
            if leave is None or last.finished or len(last.outputs[0].token_ids) < leave["after"]:
                continue
            if leave["how"] == "close":
                await stream.aclose()  # type: ignore[attr-defined]
                break
            leave = None
            await self.engine.abort(name)  # the stream ends by itself
        return described(last)

    async def come(self, request: dict[str, Any], leave: dict[str, Any] | None) -> Output:
        if leave is None or leave["how"] != "cancel":
            return await self.ask(request, leave)
        asking = asyncio.create_task(self.ask(request))
        for _ in range(leave["after"]):
            await asyncio.sleep(0)
        asking.cancel()
        try:
            return await asking
        except asyncio.CancelledError:
            return described(None)

    async def load(self, requests: list[Any], bursts: list[dict[str, Any]]) -> list[Output]:
        coming: list[asyncio.Task[Output]] = []
        unfinished: set[asyncio.Task[Output]] = set()
        for burst in bursts:
            while len(unfinished) > burst["waiting"]:
                _, unfinished = await asyncio.wait(unfinished, return_when="FIRST_COMPLETED")
            for client in burst["clients"]:
                asked = self.come(requests[client["request"]], client["leave"])
                coming.append(asyncio.create_task(asked))
                unfinished.add(coming[-1])
        return list(await asyncio.gather(*coming))

    async def idle(self) -> dict[str, Any]:
        """What is held when nobody asks. The cache can be reset when all its blocks are free."""
        for _ in range(100):  # the worker forgets a cancelled request in the step after
            (held,) = await self.engine.collective_rpc("held")
            if held["requests"] == 0 and await self.engine.reset_prefix_cache():
                return held | {"unfinished": self.engine.get_num_unfinished_requests()}
            await asyncio.sleep(0.05)
        raise RuntimeError("requests or KV blocks are held by an engine that nobody asks")

    async def nudged(
        self, request: dict[str, Any], tokens: list[int], expected: list[int], tie: float
    ) -> list[Output]:
        """Of a request with other tokens than expected; none where the one begins the other."""
        outputs = []
        pairs = zip(tokens, expected, strict=False)
        for token, other in itertools.islice((pair for pair in pairs if pair[0] != pair[1]), 1):
            for bias in ({token: tie}, {other: -tie}):
                params = {**request["params"], "logit_bias": bias}
                outputs.append(await self.ask({**request, "params": params}))
        return outputs


async def serve(engine: AsyncLLM, job: dict[str, Any]) -> dict[str, Any]:
    requests, clients = job["requests"], Clients(engine)
    alone = [await clients.ask(request) for request in requests]
    if PreEmptions.count:
        raise RuntimeError("a request that ran alone was pre-empted")
    idle, served = [await clients.idle()], []
    for bursts in job["phases"]:
        served += await clients.load(requests, bursts)
        idle.append(await clients.idle())
    pre_emptions = PreEmptions.count

    nudged = {}
    asked = [one["request"] for phase in job["phases"] for b in phase for one in b["clients"]]
    for number, (output, request) in enumerate(zip(served, asked, strict=True)):
        both = output["token_ids"], alone[request]["token_ids"]
        if outputs := await clients.nudged(requests[request], *both, job["tie"]):
            nudged[number] = outputs
    config = engine.vllm_config
    return {
        "engine": {
            "device": idle[0]["device"],
            "runner": "v2" if config.use_v2_model_runner else "v1",
            "graphs": config.compilation_config.cudagraph_mode.name,
            "asynchronous": config.scheduler_config.async_scheduling,
            "prefix_caching": config.cache_config.enable_prefix_caching,
        },
        "alone": alone,
        "served": served,
        "nudged": nudged,
        "idle": idle,
        "pre_emptions": pre_emptions,
    }


async def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    arguments = AsyncEngineArgs(**job["engine"], worker_extension_cls="mixed_requests.Held")
    engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[PreEmptions])
    try:
        Path(result_path).write_text(json.dumps(await serve(engine, job)))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
