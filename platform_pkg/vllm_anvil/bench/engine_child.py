# SPDX-License-Identifier: Apache-2.0
"""One run of one engine: `python -P engine_child.py JOB.json`.

Run by its path and importing nothing of this package, so that it serves in an environment in which
the package is not installed. JOB holds

    result      file to write, as JSON, again after each part
    started     time.monotonic() when the process was started
    expect      prefix of the platform's class, "module.Name"
    absent      a package that must not be there, or null
    engine      arguments of vllm.LLM, or null: only look at the platform
    vocabulary  token ids are drawn from [0, vocabulary)
    seed        of the timed prompts
    scenarios   [{"name", "kind", "batch", "prompt", "tokens"}, ...]

What comes out is in `Report`. A platform other than the expected one is refused before an engine
is started.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

# Steps after the last request's first token that are not timed: requests that were admitted in
# different steps fall into line, and what is made on first use has been made.
SETTLING_STEPS = 4
# The prompts whose tokens must be the same in all runs of a platform: one at a time, so that no
# chance decides which of them share a step.
CHECK_PROMPTS, CHECK_PROMPT, CHECK_TOKENS = 4, 24, 16


class Refusal(Exception):
    """This environment is not the one that was to be measured."""


class Report:
    """The result, kept in its file: what was found and what is being done."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.found: dict[str, Any] = {}

    def add(self, doing: str, **found: Any) -> None:
        self.found |= found
        self.found["doing"] = doing
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self.found))
        beside.replace(self._path)


def require_platform(job: dict[str, Any]) -> dict[str, str]:
    """Names and versions of what is here. Raises Refusal where it is something else."""
    absent = job["absent"]
    if absent is not None and importlib.util.find_spec(absent) is not None:
        raise Refusal(
            f"{sys.executable} has {absent} installed, so that it is no baseline: name the Python "
            "of an environment with the engine alone (make baseline)"
        )
    import torch
    import vllm
    from vllm.platforms import current_platform

    kind = type(current_platform)
    platform = f"{kind.__module__}.{kind.__name__}"
    if not platform.startswith(job["expect"]):
        raise Refusal(
            f"vLLM chose the platform {platform} in {sys.executable}, where {job['expect']} was to "
            "be measured (`vllm-anvil doctor` tells why, and which variables decide)"
        )
    return {"platform": platform, "vllm": vllm.__version__, "torch": torch.__version__}


def draw_prompts(seed: str, count: int, length: int, vocabulary: int) -> list[list[int]]:
    """Distinct prompts: the same ones wherever the seed is the same."""
    chance = random.Random(seed)
    return [[chance.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


class Requests:
    """A batch of requests on its way through the engine.

    Attributes:
        begin: the first submission, by time.perf_counter().
        times: seconds from the first submission to each step that brought tokens.
        brought: for each of these steps, the number of requests that got a token.
        tokens: of each request.
    """

    def __init__(self, engine: Any, name: str, prompts: list[list[int]], tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        names = [f"{name}-{number}" for number in range(len(prompts))]
        self.tokens: list[list[int]] = [[] for _ in prompts]
        self.times: list[float] = []
        self.brought: list[int] = []
        self._fewest: list[int] = []
        self.begin = time.perf_counter()
        for one, prompt in zip(names, prompts, strict=True):
            engine.add_request(one, {"prompt_token_ids": prompt}, params)
        place = {one: number for number, one in enumerate(names)}
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - self.begin
            brought = 0
            for output in outputs:
                new = output.outputs[0].token_ids
                self.tokens[place[output.request_id]] += new
                brought += len(new) > 0
            if brought:
                self.times.append(now)
                self.brought.append(brought)
                self._fewest.append(min(map(len, self.tokens)))

    def first_tokens(self) -> float:
        """Seconds until every request had its first token."""
        return next(t for t, fewest in zip(self.times, self._fewest, strict=True) if fewest >= 1)

    def steady_window(self) -> tuple[int, int]:
        """The steps in which every request decodes a token, after the settling ones: those whose
        ends are `times[first + 1]` to `times[last]`."""
        count = len(self.tokens)
        ends = [
            number
            for number, (fewest, brought) in enumerate(
                zip(self._fewest, self.brought[1:], strict=False), 1
            )
            if fewest > SETTLING_STEPS and brought == count
        ]
        if not ends:
            raise RuntimeError(
                f"no step of {count} requests with {len(self.tokens[0])} new tokens each was "
                "steady: ask for more new tokens"
            )
        return ends[0] - 1, ends[-1]

    def steady_steps(self) -> list[float]:
        """Seconds of each of these steps."""
        first, last = self.steady_window()
        window = self.times[first : last + 1]
        return [now - before for before, now in pairwise(window)]


def measure(engine: Any, scenario: dict[str, Any], seed: str, vocabulary: int) -> dict[str, Any]:
    """Warms one scenario up with other prompts, then runs and times it."""
    kind, batch, length = scenario["kind"], scenario["batch"], scenario["prompt"]
    seed, name = f"{seed}/{scenario['name']}", scenario["name"]
    prefill = kind == "prefill"
    # A decode is timed only after its own prompts, which warm the long ones up.
    warm_length = length if prefill else min(length, 32)
    others = draw_prompts(f"{seed}/warm-up", batch, warm_length, vocabulary)
    Requests(engine, f"{name}-warm-up", others, 1 if prefill else SETTLING_STEPS + 2)
    prompts = draw_prompts(seed, batch, length, vocabulary)
    requests = Requests(engine, name, prompts, scenario["tokens"])
    found: dict[str, Any] = {"tokens": requests.tokens, "first_tokens_s": requests.first_tokens()}
    if prefill:
        return found | {"seconds": requests.first_tokens()}
    steps = requests.steady_steps()
    return found | {"seconds": sum(steps) / len(steps), "steps_s": steps}


def check_tokens(engine: Any, vocabulary: int) -> list[list[int]]:
    prompts = draw_prompts("check", CHECK_PROMPTS, CHECK_PROMPT, vocabulary)
    return [
        Requests(engine, f"check-{number}", [prompt], CHECK_TOKENS).tokens[0]
        for number, prompt in enumerate(prompts)
    ]


def peak_memory() -> dict[str, int]:
    """Peak resident bytes of each process of this session, by process id."""
    session, peaks = os.getsid(0), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            status = (folder / "status").read_text()
        except OSError:
            continue  # it has ended
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
        if line is not None:
            peaks[folder.name] = int(line.split()[1]) << 10
    return peaks


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    report = Report(job["result"])
    report.add("importing the engine")
    try:
        report.add("importing the engine", **require_platform(job))
    except Refusal as refusal:
        report.add("refusing", refused=str(refusal))
        return
    if job["engine"] is None:
        return
    from vllm import LLM

    imported = time.monotonic() - job["started"]
    report.add("starting the engine")
    llm = LLM(**job["engine"])
    engine = llm.llm_engine
    ready = time.monotonic() - job["started"]
    vocabulary = job["vocabulary"]
    report.add("making its first token")
    first = draw_prompts("first", 1, 8, vocabulary)
    Requests(engine, "first", first, 1)
    answered = time.monotonic() - job["started"]
    config = engine.vllm_config
    report.add(
        "checking tokens",
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        compilation=str(getattr(config.compilation_config.mode, "name", None)).lower(),
        batched_tokens=config.scheduler_config.max_num_batched_tokens,
        start_up={
            "import_s": imported,
            "load_s": ready - imported,
            "first_token_s": answered - ready,
            "total_s": answered,
        },
    )
    report.add("checking tokens", check=check_tokens(engine, vocabulary))
    measured: dict[str, Any] = {}
    for scenario in job["scenarios"]:
        report.add(f"measuring {scenario['name']}", scenarios=measured)
        measured[scenario["name"]] = measure(engine, scenario, job["seed"], vocabulary)
    report.add("stopping", scenarios=measured, peak_memory=peak_memory())


if __name__ == "__main__":
    main(sys.argv[1])
