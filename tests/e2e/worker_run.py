# SPDX-License-Identifier: Apache-2.0
"""Engines whose workers are called for what is not a step, one after the other.

`python worker_run.py JOBS.json FOLDER`. JOBS: {name: {"engine": arguments of vllm.LLM, "prompts":
token ids, "acts": [[name of a function below, its arguments], ...], "environment": variables}}; an
act's result is under its name, the last one's where it is called several times. For each job
FOLDER/name.json: {"tokens": those made before anything else, act: what it found}, or {"failed":
what the engine said when it did not start}. With replicas, the first one answers all requests. Each
engine has a process of its own, which is forked: so the engine is imported once for all.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from engine_forks import run_each

NEW_TOKENS = 12


class Extension:
    """Methods that workers get, as programs that train a model give them."""

    model_runner: Any
    rank: int

    def load_from(self, file: str) -> None:
        from safetensors.torch import load_file

        self.model_runner.model.load_weights(load_file(file).items())

    def count_dummies(self) -> None:
        run, self.dummies = self.execute_dummy_batch, 0  # type: ignore[has-type]

        def counted() -> None:
            self.dummies += 1
            run()

        self.execute_dummy_batch = counted

    def write_dummies(self, folder: str) -> None:
        replica = self.vllm_config.parallel_config.data_parallel_index  # type: ignore[attr-defined]
        Path(folder, f"{replica}.dummies").write_text(str(self.dummies))


def greedy() -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)


async def replicas(job: dict[str, Any]) -> dict[str, Any]:
    """What the first of several replicas answers, and how often which of them ran a step without
    requests meanwhile."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(worker_extension_cls="worker_run.Extension", **job["engine"])
    )

    async def one(number: int, prompt: Any) -> list[int]:
        outputs = llm.generate(prompt, greedy(), str(number), data_parallel_rank=0)
        return list([output async for output in outputs][-1].outputs[0].token_ids)

    await llm.collective_rpc("count_dummies")
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    tokens = await asyncio.gather(*[one(i, prompt) for i, prompt in enumerate(prompts)])
    await llm.collective_rpc("write_dummies", args=(job["folder"],))
    files = sorted(Path(job["folder"]).glob("*.dummies"))
    return {"tokens": tokens, "dummies": [int(file.read_text()) for file in files]}


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(worker_extension_cls="worker_run.Extension", **job["engine"])
        self.prompts: list[Any] = [{"prompt_token_ids": ids} for ids in job["prompts"]]

    def tokens(self) -> list[list[int]]:
        outputs = self.llm.generate(self.prompts, greedy(), use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def profile(self, prefix: str) -> dict[str, Any]:
        """A session of the profiler; another without a name; the answers meanwhile."""
        self.llm.start_profile(prefix)
        tokens = self.tokens()
        self.llm.stop_profile()
        self.llm.start_profile()
        self.llm.stop_profile()
        return {"tokens": tokens}

    def profile_nothing(self) -> dict[str, Any]:
        """Where no profiler is configured."""
        said = self._refused(self.llm.start_profile)
        return {"said": said, "tokens": self.tokens()}

    def save(self, path: str, max_size: int | None = None) -> dict[str, Any]:
        core = self.llm.llm_engine.engine_core
        core.save_sharded_state(path, None, max_size)
        return {"tokens": self.tokens()}

    def save_nowhere(self, paths: list[str]) -> dict[str, Any]:
        core = self.llm.llm_engine.engine_core
        said = [self._refused(core.save_sharded_state, path, None, None) for path in paths]
        tensorized = self._refused(self.llm.collective_rpc, "save_tensorized_model", None, ({},))
        return {"said": said, "tensorized": tensorized, "tokens": self.tokens()}

    def load(self, file: str) -> dict[str, Any]:
        """Other weights, by a method of the workers' own."""
        self.llm.collective_rpc("load_from", args=(file,))
        self.llm.reset_prefix_cache()
        return {"tokens": self.tokens()}

    def reload(self, folder: str) -> dict[str, Any]:
        """Other weights, by the engine's own."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        self.llm.reset_prefix_cache()
        return {"tokens": self.tokens()}

    def _refused(self, call: Any, *arguments: Any) -> str:
        try:
            call(*arguments)
        except Exception as error:
            return str(error)
        return ""


def run(job: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(job.get("environment", {}))
    if "data_parallel_size" in job["engine"]:
        return asyncio.run(replicas(job))
    try:
        engine = Engine(job)
    except Exception as error:
        return {"failed": str(error)}
    result = {"tokens": engine.tokens()}
    for act, arguments in job.get("acts", []):
        result[act] = getattr(engine, act)(*arguments)
    return result


def main(jobs_path: str, results: str) -> None:
    run_each(jobs_path, results, lambda name, job: run(job))


if __name__ == "__main__":
    main(*sys.argv[1:])
