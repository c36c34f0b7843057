# SPDX-License-Identifier: Apache-2.0
"""Checks implementations before they are timed, and says in words what became of them.

A user's runs in a process of its own first, on the same inputs: what kills or blocks that process
leaves the benchmark and the other implementations alone.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anvil_attention.contract import AttentionImplementation, Unsupported
from anvil_attention.verification import WrongAttentionError, check, place_call, verify

from .implementations import Candidate
from .problem import Problem

# Lines of a child's last words that are shown.
LAST_WORDS = 6
# Seconds that a child may take to import torch and open the device, which is not a user's doing.
START_TIMEOUT_S = 300.0


class Status(enum.StrEnum):
    """What became of an implementation on a problem."""

    PASSED = "passed"
    REFUSED = "refused"  # as the contract lets it
    UNAVAILABLE = "not available"  # comes with Anvil, and needs what is not there
    MISSING = "missing"  # no such module, file or function, or nothing that could be one
    WRONG = "wrong"
    RAISED = "raised an exception"
    CRASHED = "crashed"
    HUNG = "hung"
    TOO_LARGE = "too large"  # the problem, not the implementation

    @property
    def is_failure(self) -> bool:
        return self in (self.MISSING, self.WRONG, self.RAISED, self.CRASHED, self.HUNG)


@dataclass(frozen=True)
class Outcome:
    """A status and why; `message` is empty where it passed."""

    status: Status
    message: str = ""


PASSED = Outcome(Status.PASSED)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome that an exception of an implementation means."""
    if isinstance(error, Unsupported):
        return Outcome(Status.REFUSED, str(error))
    if isinstance(error, WrongAttentionError):
        return Outcome(Status.WRONG, str(error))
    return Outcome(Status.RAISED, f"{type(error).__name__}: {error}")


def check_layer(
    implementation: AttentionImplementation, problem: Problem, device: torch.device
) -> Outcome:
    """Checks small batches of a problem's layer: padding, odd lengths, every order of the cache."""
    try:
        verify(implementation, problem.spec, device)
    except Exception as error:
        return outcome_of(error)
    return PASSED


def check_problem(
    implementation: AttentionImplementation, problem: Problem, device: torch.device, seed: int
) -> Outcome:
    """Checks the very call that is timed."""
    try:
        check(implementation, place_call(problem.host_call(seed), device, implementation))
    except Exception as error:
        return outcome_of(error)
    return PASSED


def check_apart(
    candidate: Candidate,
    device: str,
    problems: Sequence[Problem],
    *,
    seed: int = 0,
    timeout_s: float = 120.0,
) -> list[Outcome]:
    """Checks a user's implementation on each problem, in a process of its own.

    After a crash or a hang it is not asked again: the other problems get the same outcome.

    Args:
        device: as torch names it.
        timeout_s: seconds that importing it or one problem may take.
    """
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="anvil-attention-") as folder:
        task = Path(folder) / "task"
        task.write_bytes(pickle.dumps((asdict(candidate), device, list(problems), seed)))
        step = "while it was imported"
        with _Child(task, Path(folder) / "errors") as child:
            for message in child.messages(timeout_s):
                if message is None:
                    return _fill(
                        outcomes,
                        Outcome(Status.HUNG, f"no answer in {timeout_s:g} s {step}; it was ended"),
                        problems,
                    )
                if "step" in message:
                    step = message["step"]
                else:
                    found = Outcome(Status(message["status"]), message["message"])
                    if message.get("all"):
                        return _fill(outcomes, found, problems)
                    outcomes.append(found)
            if len(outcomes) < len(problems):
                _fill(outcomes, Outcome(Status.CRASHED, child.end_of_it(step)), problems)
    return outcomes


def _fill(outcomes: list[Outcome], last: Outcome, problems: Sequence[Problem]) -> list[Outcome]:
    outcomes.extend([last] * (len(problems) - len(outcomes)))
    return outcomes


class _Child:
    """The process of `check_process`, ended with everything that it started when this is left."""

    def __init__(self, task: Path, errors: Path) -> None:
        self._errors = errors
        self._read, write = os.pipe()
        paths = os.pathsep.join(path for path in sys.path if path)
        with errors.open("wb") as sink:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-X", "faulthandler"),
                    *("-m", "anvil_attention.bench.check_process", str(task), str(write)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=os.environ | {"PYTHONPATH": paths},
                pass_fds=(write,),
                start_new_session=True,
            )
        os.close(write)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exception: Any) -> None:
        # The group outlives its leader where it started processes of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)

    def messages(self, timeout_s: float) -> Iterator[dict[str, Any] | None]:
        """Its messages until it ends; None, the last one, after `timeout_s` without any."""
        pending = b""
        patience = max(timeout_s, START_TIMEOUT_S)
        while True:
            deadline = time.monotonic() + patience
            while b"\n" not in pending:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._read], [], [], left)[0]:
                    yield None
                    return
                chunk = os.read(self._read, 1 << 16)
                if not chunk:
                    return
                pending += chunk
            line, _, pending = pending.partition(b"\n")
            yield json.loads(line)
            patience = timeout_s

    def end_of_it(self, step: str) -> str:
        """How it ended, in words."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return f"it closed what it was not given {step}"
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        # Python's own report of a signal says what was being run; otherwise the end tells most.
        fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
        begin = fatal[0] if fatal else max(0, len(lines) - LAST_WORDS)
        words = "\n".join(lines[begin : begin + LAST_WORDS])
        if status < 0:
            how = f"it ended its process by {signal.Signals(-status).name} {step}"
        else:
            how = f"it ended its process with status {status} {step}"
        return f"{how}:\n{words}" if words else how
