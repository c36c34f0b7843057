# SPDX-License-Identifier: Apache-2.0
"""Carries out a parity plan in a child process, and survives the child's death.

An op that crashes its process is reported as that, and a new child goes on behind the case that
ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from vllm_anvil.cli.parity_child import Plan
from vllm_anvil.cli.ready_device import Refused
from vllm_anvil.testing.report import from_json
from vllm_anvil.testing.result import Result

# After so many crashes the op's remaining cases are left out: each takes a new process.
CRASHES_PER_OP = 2


@dataclass
class Run:
    """What came of one plan.

    Attributes:
        results: of every call, crashes among them.
        ready: what the child found before it began; empty if it did not get so far.
        interrupted: whether the run was stopped before its end.
    """

    plan: Plan
    results: list[Result] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False


# Told of each case that begins: (op, case, number of the case, of how many).
Progress = Callable[[str, str, int, int], None]


def facts(device: str) -> dict[str, Any]:
    """The instruction sets of a device: "isa", "isas", "native_missing"."""
    for event in _events(Plan(device, only_facts=True), []):
        if event["event"] == "facts":
            return event
    raise Refused(f"the process that looks for the device {device!r} died", status=1)


def carry_out(plan: Plan, progress: Progress) -> Run:
    """Runs a plan to its end. Raises Refused if it cannot be carried out at all."""
    run = Run(plan)
    begun: list[tuple[str, str]] = []
    crashes: Counter[str] = Counter()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            ended = _carry_on(run, begun, progress)
            if ended is None:
                return run
            op, case, kind, how = ended
            crashes[op] += 1
            if crashes[op] == CRASHES_PER_OP:
                how += "; its other cases are left out"
                run.plan = replace(run.plan, skip=(*run.plan.skip, (op, "*")))
            problem = f"the process died: {how}"
            run.results.append(Result(op, case, kind, "contiguous", "op", problem=problem))
    run.interrupted = True
    return run


def _carry_on(
    run: Run, begun: list[tuple[str, str]], progress: Progress
) -> tuple[str, str, str, str] | None:
    """One child. Returns the op, case and kind that killed it, and how; None if it came to its
    end."""
    plan = replace(run.plan, skip=(*run.plan.skip, *begun))
    running: dict[str, Any] | None = None
    end: list[str] = []
    for event in _events(plan, end):
        if event["event"] == "ready":
            run.ready = run.ready or event
        elif event["event"] == "start":
            running = event
            begun.append((event["op"], event["case"]))
            progress(event["op"], event["case"], len(begun), run.ready["total"])
        elif event["event"] == "result":
            run.results.append(from_json(event["result"]))
        elif event["event"] == "done":
            return None
    if running is None:
        raise Refused(f"the process that runs the ops died before the first one: {end[0]}", 1)
    return running["op"], running["case"], running["kind"], end[0]


def _events(plan: Plan, end: list[str]) -> Iterator[dict[str, Any]]:
    """What the child sends. At its end, how it ended is appended to `end`.

    Raises Refused if the child says that it cannot carry out the plan."""
    variables = {**os.environ}
    if plan.isa is not None:
        variables["ANVIL_ISA"] = plan.isa
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "vllm_anvil.cli.parity_child"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # an interrupt is for us, who then report what ran
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                json.dump(asdict(plan), child.stdin)
                child.stdin.close()
            for line in child.stdout:
                event = json.loads(line)
                if event["event"] == "refused":
                    raise Refused(event["message"])
                yield event
            child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        end.append(_ending(child.returncode, errors))


def _ending(status: int, errors: IO[str]) -> str:
    """How a process ended that was to send more, with the last line that it wrote."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    return f"exit status {status}" + (f": {lines[-1]}" if lines else "")
