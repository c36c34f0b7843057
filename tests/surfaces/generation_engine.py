# SPDX-License-Identifier: Apache-2.0
"""What `vllm.LLM` does with a generative model: `python generation_engine.py JOB.json RESULT.json`.

JOB: {"engine": arguments of vllm.LLM, "prompts": texts, "conversations", "template": path of a chat
template, "beams": arguments of BeamSearchParams, one for each search of the prompts, "new_tokens"}.
RESULT: {"runner", "defaults": the sampling parameters that the engine takes by itself,
"by default": outputs of the prompts with these, "greedy", "chat", "template" (given as text),
"loaded" (by `load_chat_template`), "beams": for each search, for each prompt, {"token_ids",
"logprob"} of the sequences, the best first, "refused": of methods of pooling models}. An output is
{"prompt_token_ids", "token_ids", "text"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from offline_engine import error_of
from vllm import LLM, SamplingParams
from vllm.renderers.chat_utils import load_chat_template
from vllm.sampling_params import BeamSearchParams


def described(outputs: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": list(output.outputs[0].token_ids),
            "text": output.outputs[0].text,
        }
        for output in outputs
    ]


def beams(llm: LLM, prompts: list[str], arguments: dict[str, Any]) -> list[list[dict[str, Any]]]:
    searched = llm.beam_search(
        [{"prompt": prompt} for prompt in prompts], BeamSearchParams(**arguments)
    )
    return [
        [{"token_ids": one.tokens, "logprob": one.cum_logprob} for one in output.sequences]
        for output in searched
    ]


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    llm = LLM(**job["engine"])
    prompts, conversations, path = job["prompts"], job["conversations"], job["template"]
    greedy = SamplingParams(temperature=0, max_tokens=job["new_tokens"])
    defaults = llm.get_default_sampling_params()

    def chat(template: str | None) -> list[dict[str, Any]]:
        return described(llm.chat(conversations, greedy, use_tqdm=False, chat_template=template))

    result = {
        "runner": llm.model_config.runner_type,
        "defaults": {
            name: getattr(defaults, name)
            for name in ("temperature", "top_k", "repetition_penalty", "max_tokens")
        },
        "by default": described(llm.generate(prompts, use_tqdm=False)),
        "greedy": described(llm.generate(prompts, greedy, use_tqdm=False)),
        "chat": chat(None),
        "template": chat(Path(path).read_text()),
        "loaded": chat(load_chat_template(path)),
        "beams": [beams(llm, prompts, arguments) for arguments in job["beams"]],
        "refused": [
            error_of(lambda: llm.embed("one")),
            error_of(lambda: llm.encode("one", pooling_task="embed")),
        ],
    }
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
