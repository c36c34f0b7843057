# SPDX-License-Identifier: Apache-2.0
"""AsyncLLM with processors loaded in every way: `python async_engine.py JOB.json RESULT.json`.

JOB: {"engine": arguments of AsyncEngineArgs, "requests": [{"token_ids", "params"}, ...], "wrong":
params of requests that are not admitted, "breaks": params of one that breaks the engine}. RESULT:
{"outputs": of the requests, "wrong": what each of those fails with, sent between the others,
"architecture": of the model, "processes": numbers of this program's and the worker's, "witnesses":
what witness.py noted,
"after": tokens of the first request once all are done, "broken": what the last request gets,
"dead": whether the engine says so, "then": what one after it gets}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from offline_engine import described
from processors import FromClass
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    job["engine"]["logits_processors"].append(FromClass)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["engine"]))

    async def ask(name: str, request: dict[str, Any]) -> dict[str, Any]:
        prompt: Any = {"prompt_token_ids": request["token_ids"]}
        params = SamplingParams(**request["params"], output_kind=RequestOutputKind.FINAL_ONLY)
        (output,) = [one async for one in engine.generate(prompt, params, name)]
        return described(output)

    async def error_of(name: str, params: dict[str, Any]) -> str | None:
        try:
            await ask(name, {"token_ids": [5, 6, 7], "params": params})
        except Exception as error:
            # The engine hands on what it does not expect as the cause of an error of its own.
            return f"{type(error).__name__}: {error} {error.__cause__ or ''}"
        return None

    try:
        asked = [ask(f"good {i}", one) for i, one in enumerate(job["requests"])]
        wrong = [error_of(f"wrong {i}", one) for i, one in enumerate(job["wrong"])]
        found = await asyncio.gather(*asked, *wrong)
        result = {"outputs": found[: len(asked)], "wrong": found[len(asked) :]}
        result["architecture"] = engine.model_config.architecture
        (report,) = await engine.collective_rpc("anvil_report")
        result["processes"] = [os.getpid(), report["pid"]]
        result["witnesses"] = Path(os.environ["WITNESS"]).read_text().splitlines()
        result["after"] = (await ask("after", job["requests"][0]))["token_ids"]
        result["broken"] = await error_of("breaks", job["breaks"])
        result["then"] = await error_of("then", {"max_tokens": 1})
        result["dead"] = engine.errored
        Path(result_path).write_text(json.dumps(result))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
