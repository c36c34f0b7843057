# SPDX-License-Identifier: Apache-2.0
"""An engine that serves adapters.

`python lora_run.py JOB.json RESULT.json`. JOB: {"engine": arguments of vllm.LLM, "adapters": {name:
folder}, "requests": [[name of an adapter or null, token ids], ...], "acts": names of functions
below, in their order}. RESULT: {"outputs": of the requests in one batch, act: what it found}. In an
output: "tokens", "logprobs" of these, "prompt_logprobs" and "cached" tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

NEW_TOKENS = 16
Requests = list[tuple[str | None, list[int]]]


class Adapted:
    def __init__(self, job: dict[str, Any]) -> None:
        self.llm = LLM(**job["engine"])
        self.folders: dict[str, str] = job["adapters"]
        self.requests: Requests = job["requests"]
        self.forwards = 0
        executor = getattr(self.llm.llm_engine, "model_executor", None)
        if hasattr(executor, "driver_worker"):  # in this process
            model = executor.driver_worker.worker.model_runner.get_model()
            model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def adapter(self, name: str) -> LoRARequest:
        number = 1 + list(self.folders).index(name)
        return LoRARequest(name, number, self.folders[name])

    def answers(self, requests: Requests, prompt_logprobs: bool = True) -> list[dict[str, Any]]:
        greedy = SamplingParams(
            temperature=0,
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            prompt_logprobs=0 if prompt_logprobs else None,
        )
        prompts: list[Any] = [{"prompt_token_ids": ids} for _, ids in requests]
        adapters = [None if name is None else self.adapter(name) for name, _ in requests]
        found = self.llm.generate(prompts, greedy, lora_request=adapters, use_tqdm=False)
        return [_described(one) for one in found]

    def graphs(self) -> int:
        """How often Python ran the model for an answer with adapters beside one without."""
        before = self.forwards
        self.answers([(name, [3, 5, 7]) for name in (None, *list(self.folders)[:3])])
        return self.forwards - before

    def prefixes(self) -> list[dict[str, Any]]:
        """One prompt, longer than blocks are, without an adapter and with two, each of them twice;
        log-probabilities of prompts would keep the engine from looking into its cache."""
        prompt = list(range(100, 150))
        names = [None, None, "rank8", "rank8", "rank64", "rank64", None]
        return [self.answers([(name, prompt)], prompt_logprobs=False)[0] for name in names]

    def managed(self) -> dict[str, Any]:
        """Added, listed, pinned and removed; as many others as fit come and go."""
        engine, pinned = self.llm.llm_engine, self.adapter("rank5")
        for name in self.folders:
            engine.remove_lora(self.adapter(name).lora_int_id)
        found: dict[str, Any] = {"none": sorted(engine.list_loras())}
        found["added"] = engine.add_lora(pinned)
        found["pinned"] = engine.pin_lora(pinned.lora_int_id)
        for name in self.folders:
            engine.add_lora(self.adapter(name))
        found["listed"] = sorted(engine.list_loras())
        found["number"] = pinned.lora_int_id
        found["outputs"] = self.answers([("rank5", [3, 5, 7, 9, 11])])
        found["removed"] = engine.remove_lora(pinned.lora_int_id)
        found["again"] = engine.remove_lora(pinned.lora_int_id)
        found["left"] = sorted(engine.list_loras())
        found["unknown"] = _said(lambda: engine.pin_lora(77))
        return found

    def broken(self) -> dict[str, Any]:
        """What is said of adapters that cannot be loaded; the engine answers as before."""
        folder = Path(next(iter(self.folders.values()))).parent / "broken"
        found = {}
        for number, one in enumerate(sorted(folder.iterdir())):
            request = LoRARequest(one.name, 100 + number, str(one))
            found[one.name] = _said(lambda r=request: self.llm.llm_engine.add_lora(r))
        missing = LoRARequest("missing", 200, str(folder / "missing"))
        found["missing"] = _said(lambda: self.llm.llm_engine.add_lora(missing))
        return {"said": found, "outputs": self.answers(self.requests)}

    def replaced(self) -> list[dict[str, Any]]:
        """An adapter that is loaded again from another folder, under its number."""
        number = self.adapter("rank16").lora_int_id
        for name in ("rank64", "rank16"):
            new = LoRARequest("rank16", number, self.folders[name], load_inplace=True)
            self.llm.llm_engine.add_lora(new)
            self.llm.reset_prefix_cache()
            yield self.answers([("rank16", self.requests[0][1])])[0]


def _said(call: Callable[[], Any]) -> str:
    try:
        return f"no error, but {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _described(output: Any) -> dict[str, Any]:
    tokens = list(output.outputs[0].token_ids)
    prompt = zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=False)
    return {
        "tokens": tokens,
        "logprobs": [
            entry[token].logprob
            for token, entry in zip(tokens, output.outputs[0].logprobs, strict=True)
        ],
        "prompt_logprobs": [entry[token].logprob for token, entry in prompt],
        "cached": output.num_cached_tokens,
    }


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    adapted = Adapted(job)
    found: dict[str, Any] = {"outputs": adapted.answers(adapted.requests)}
    for act in job["acts"]:
        result = getattr(adapted, act)()
        found[act] = result if isinstance(result, (int, dict)) else list(result)
    Path(result_path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
