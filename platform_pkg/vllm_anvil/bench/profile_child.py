# SPDX-License-Identifier: Apache-2.0
"""One engine in one process, with what it does written down: `profile_child.py JOB.json`.

JOB is engine_child.py's, with one scenario. The result holds the device's spans and the host's
phases of the second run of the scenario; the first one warms up and tells what a step takes when
nothing is written down.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from vllm_anvil.bench.engine_child import (
    Refusal,
    Report,
    Requests,
    draw_prompts,
    require_platform,
)


class HostPhases:
    """Writes down when the functions that it wraps ran, on the thread that made it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, int, int]] = []
        self.missing: list[str] = []
        self.on = False
        self._thread = threading.get_ident()

    def wrap(self, phase: str, owner: Any, attribute: str) -> None:
        """Replaces the attribute; where there is none, says so in `missing`."""
        function: Callable[..., Any] | None = getattr(owner, attribute, None)
        if function is None:
            self.missing.append(f"{phase}: no {attribute} in {type(owner).__name__}")
            return

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.on or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            begin = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.spans.append((phase, begin, time.perf_counter_ns()))

        setattr(owner, attribute, timed)

    def wrap_engine(self, engine: Any) -> None:
        """The parts of a step of Model Runner V2, and of V1 as far as they have the same names."""
        from vllm.v1.worker.gpu.async_utils import AsyncOutput

        core = engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        self.wrap("engine", engine, "step")
        self.wrap("schedule", core.scheduler, "schedule")
        self.wrap("prepare inputs", runner, "execute_model")
        self.wrap("launch forward", runner.model, "forward")
        if getattr(runner, "cudagraph_manager", None) is not None:
            self.wrap("launch forward", runner.cudagraph_manager, "run_fullgraph")
        self.wrap("launch sampling", runner, "sample_tokens")
        self.wrap("wait for tokens", AsyncOutput, "get_output")
        self.wrap("update requests", core.scheduler, "update_from_output")
        self.wrap("make outputs", engine.output_processor, "process_outputs")


def window_of(requests: Requests, decode: bool) -> tuple[float, float, int]:
    """Begin and end of what is looked at, by time.perf_counter(), and its number of steps."""
    if not decode:
        end = requests.first_tokens()
        steps = sum(at <= end for at in requests.times)
        return requests.begin, requests.begin + end, steps
    first, last = requests.steady_window()
    times = requests.times
    return requests.begin + times[first], requests.begin + times[last], last - first


def run(job: dict[str, Any], report: Report) -> None:
    import torch
    from vllm import LLM

    from vllm_anvil.device.trace import trace

    report.add("starting the engine")
    engine: Any = LLM(**job["engine"]).llm_engine
    (scenario,) = job["scenarios"]
    decode = scenario["kind"] == "decode"
    batch, length, tokens = scenario["batch"], scenario["prompt"], scenario["tokens"]

    def requests(name: str) -> Requests:
        prompts = draw_prompts(f"{job['seed']}/{name}", batch, length, job["vocabulary"])
        return Requests(engine, name, prompts, tokens)

    report.add("warming up")
    requests("warm-up")
    begin, end, steps = window_of(requests("untraced"), decode)
    untraced = (end - begin) / steps
    phases = HostPhases()
    phases.wrap_engine(engine)
    report.add(f"tracing {scenario['name']}")
    with trace() as spans:
        phases.on = True
        traced = requests("traced")
        phases.on = False
        torch.accelerator.synchronize()
    begin, end, steps = window_of(traced, decode)
    report.add(
        "stopping",
        begin_ns=int(begin * 1e9),
        end_ns=int(end * 1e9),
        steps=steps,
        untraced_s=untraced,
        dropped=spans.dropped,
        device=spans,
        host=phases.spans,
        missing=phases.missing,
    )


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    report = Report(job["result"])
    report.add("importing the engine")
    try:
        report.add("importing the engine", **require_platform(job))
    except Refusal as refusal:
        report.add("refusing", refused=str(refusal))
        return
    run(job, report)


if __name__ == "__main__":
    main(sys.argv[1])
