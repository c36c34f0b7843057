# SPDX-License-Identifier: Apache-2.0
"""`vllm.LLM` with an IO processor: `python pooling_engine.py JOB.json RESULT.json`.

JOB: {"model", "searches": data of searches, "wrong": data that is not}. RESULT: {"refused": by the
name of plugin that there is none of, "answers": of the plugin that an argument chose over the
model's own choice, "wrong": errors of the data, "after": the first answer again, "broken": the
error of a plugin that raises after the model was asked, "then": the answer after that,
"permuted": what the plugin makes of outputs that come in another order}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM


def error_of(call: Any) -> str | None:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


async def permuted(processor: Any, llm: LLM, search: dict[str, Any]) -> Any:
    """The plugin's asynchronous way, with outputs in the order in which they might come."""
    prompts = await processor.pre_process_async(processor.parse_data(search), request_id="one")
    outputs = llm.encode(list(prompts), pooling_task="embed", use_tqdm=False)

    async def stream() -> Any:
        for number in sorted(range(len(outputs)), key=lambda i: (i % 2, -i)):
            yield number, outputs[number]

    return await processor.post_process_async(stream(), request_id="one")


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    arguments = {"model": job["model"], "dtype": "float32"}
    result: dict[str, Any] = {
        "refused": error_of(lambda: LLM(**arguments, io_processor_plugin="nobody"))
    }
    llm = LLM(**arguments, io_processor_plugin="breaks")

    def search(data: Any) -> Any:
        (output,) = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)
        return output.outputs

    result["answers"] = [search(data) for data in job["searches"]]
    result["wrong"] = [error_of(lambda d=data: search(d)) for data in job["wrong"]]
    result["after"] = search(job["searches"][0])
    result["broken"] = error_of(lambda: search({"query": "break", "documents": ["it"]}))
    result["then"] = search(job["searches"][0])
    processor = llm.pooling_io_processors["plugin"].io_processor
    result["permuted"] = asyncio.run(permuted(processor, llm, job["searches"][0]))
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
