# SPDX-License-Identifier: Apache-2.0
"""One engine that requests meet in, or meet alone: `invariance_child.py JOB.json`.

JOB holds `result`, `expect` and `absent` as engine_child.py's, and

    engine      arguments of vllm.LLM
    alone       [{"prompt", "params"}, ...]: asked one by one
    batches     [{"asks", "targets", "after", "chunk"}, ...]: asked together
    trace       whether the ops of the first request's tokens are compared between `alone` (one
                request) and `batches` (one batch, with that request as its target 0)

The result is {"alone": outputs, "batches": [[output or null, ...], ...], "pre_emptions", "cached",
"difference"}. An output is {"tokens", "logprobs", "prompt_logprobs"}, where log-probabilities are
written as their bits.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vllm_anvil.bench.engine_child import Refusal, Report, require_platform


class Served:
    """The engine, which runs in this process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.engine: Any = LLM(**arguments).llm_engine
        self._core = self.engine.engine_core.engine_core
        self.scheduler = self._core.scheduler
        self.pre_emptions = self.cached = self._count = 0
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.pre_emptions += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    @property
    def worker(self) -> Any:
        return self._core.model_executor.driver_worker.worker

    def ask(self, batch: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
        """Names and outputs of a batch, in its order."""
        from vllm import SamplingParams

        self.scheduler.scheduler_config.long_prefill_token_threshold = batch["chunk"]
        names, outputs, steps = [], {}, 0
        waiting = list(zip(batch["asks"], batch["after"], strict=True))
        while waiting or self.engine.has_unfinished_requests():
            # Whoever is late comes at once where nobody is left to wait for.
            while waiting and (waiting[0][1] <= steps or not self.engine.has_unfinished_requests()):
                ask = waiting.pop(0)[0]
                names.append(f"request-{self._count}")
                self._count += 1
                prompt = {"prompt_token_ids": ask["prompt"]}
                self.engine.add_request(names[-1], prompt, SamplingParams(**ask["params"]))
            for output in self.engine.step():
                if output.finished:
                    outputs[output.request_id] = output
                    self.cached += output.num_cached_tokens or 0
            steps += 1
        return names, [described(outputs[name]) for name in names]

    def ask_alone(self, ask: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        names, outputs = self.ask({"asks": [ask], "after": [0], "chunk": 0})
        return names[0], outputs[0]


def described(output: Any) -> dict[str, Any]:
    one = output.outputs[0]
    return {
        "tokens": list(one.token_ids),
        "logprobs": [_bits(entry) for entry in one.logprobs or []],
        "prompt_logprobs": [_bits(entry) for entry in output.prompt_logprobs or []],
    }


def _bits(entry: Any) -> dict[str, str]:
    return {str(token): one.logprob.hex() for token, one in (entry or {}).items()}


def run(job: dict[str, Any], report: Report) -> None:
    report.add("starting the engine")
    served = Served(job["engine"])
    trace: Any = None
    if job["trace"]:
        from vllm_anvil.bench.op_trace import OpTrace

        trace = OpTrace(served.worker.model_runner)
    with trace.watching(served.worker) if trace else nullcontext():
        alone, names = [], []
        for number, ask in enumerate(job["alone"]):
            report.add(f"asking request {number + 1} of {len(job['alone'])} alone")
            name, output = served.ask_alone(ask)
            names.append(name)
            alone.append(output)
        if job["trace"]:
            served.engine.reset_prefix_cache()
        batches: list[list[Any]] = []
        for number, batch in enumerate(job["batches"]):
            report.add(f"asking batch {number + 1} of {len(job['batches'])}")
            found, outputs = served.ask(batch)
            targets = batch["targets"]
            kept = zip(outputs, targets, strict=True)
            batches.append([output if target is not None else None for output, target in kept])
            names += [one for one, target in zip(found, targets, strict=True) if target == 0]
    difference = None
    if trace is not None:
        from vllm_anvil.bench.op_trace import first_difference

        requests = {name.split("-")[1]: name for name in names}
        seen = {name.split("-")[1]: places for name, places in trace.tokens.items()}
        first, second = (seen[number] for number in requests)
        found_difference = first_difference(first, second)
        difference = found_difference and dataclasses.asdict(found_difference)
    report.add(
        "stopping",
        alone=alone,
        batches=batches,
        pre_emptions=served.pre_emptions,
        cached=served.cached,
        difference=difference,
    )


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    report = Report(job["result"])
    report.add("importing the engine")
    try:
        report.add("importing the engine", **require_platform(job))
        run(job, report)
    except Refusal as refusal:
        report.add("refusing", refused=str(refusal))
    except (ValueError, RuntimeError, NotImplementedError) as error:
        # What the engine refuses, and that there is too little memory, in its own words.
        words = str(error).strip() or type(error).__name__
        report.add(report.found["doing"], refused=f"while {report.found['doing']}: {words}")
        raise SystemExit(0) from error


if __name__ == "__main__":
    main(sys.argv[1])
