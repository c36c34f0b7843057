# SPDX-License-Identifier: Apache-2.0
"""Runs implementations against each other on each problem: checked first, then timed in turns."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from anvil_attention.contract import AttentionImplementation, AttentionSpec
from anvil_attention.verification import (
    bind,
    check,
    difference,
    expected_output,
    place_call,
    wrong_values,
)

from . import devices
from .ceilings import Ceilings
from .checking import PASSED, Outcome, Status, check_apart, check_layer, outcome_of
from .implementations import NOTES, Candidate, resolve
from .problem import Problem, Rotation, make_rotation
from .results import Measured, ProblemResult, Results
from .timing import Stopwatch

# What a recorded output is called among the implementations.
RECORDED = "recorded"
PREFERRED_BASELINES = ("engine", "sdpa")
# Called with what is being done, in words, when that changes.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        repeats: measurements of each implementation on each problem.
        min_time_s: seconds of a measurement at least.
        pause_s: seconds between measurements: threads of one implementation spin for a while after
            their work and would take the cores of the next.
        memory: bytes that inputs may take on the device.
        timeout_s: seconds that a user's implementation may take for one problem when checked.
        baseline: what others are compared with; None: the engine's kernel, torch's SDPA, or the
            first one, whichever could be timed.
        seed: of the inputs.
    """

    repeats: int = 7
    min_time_s: float = 0.05
    pause_s: float = 0.05
    memory: int = 2 << 30
    timeout_s: float = 120.0
    baseline: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")


@dataclass
class _Entrant:
    """An implementation on its way through the problems."""

    candidate: Candidate
    implementation: AttentionImplementation | None = None
    trouble: Outcome | None = None  # why it runs nowhere
    apart: list[Outcome] = field(default_factory=list)  # by problem, from its own process
    layers: dict[AttentionSpec, Outcome] = field(default_factory=dict)


def run(
    problems: Sequence[Problem],
    candidates: Sequence[Candidate],
    device: torch.device,
    settings: Settings,
    progress: Progress = lambda words: None,
) -> Results:
    """Measures every candidate on every problem.

    What goes wrong in an implementation becomes its outcome; the others go on.
    """
    entrants = [_enter(c, problems, device, settings, progress) for c in candidates]
    names = [candidate.name for candidate in candidates]
    results = []
    for index, problem in enumerate(problems):
        progress(f"{problem.label}: inputs and expected result")
        results.append(_Contest(problem, index, entrants, device, settings, progress).result())
        gc.collect()
    return Results(
        machine=devices.describe(device),
        settings=asdict(settings),
        baseline=settings.baseline or _baseline(results, names),
        problems=tuple(results),
        notes={name: NOTES[name] for name in names if name in NOTES},
    )


def _baseline(results: Sequence[ProblemResult], names: list[str]) -> str:
    """The first of `PREFERRED_BASELINES`, then of all, that was timed at all."""
    timed = {m.name for problem in results for m in problem.measured if m.sample is not None}
    wanted = [*(name for name in PREFERRED_BASELINES if name in names), *names]
    return next((name for name in wanted if name in timed), names[0])


def _enter(
    candidate: Candidate,
    problems: Sequence[Problem],
    device: torch.device,
    settings: Settings,
    progress: Progress,
) -> _Entrant:
    entrant = _Entrant(candidate)
    if candidate.users:
        progress(f"{candidate.name}: checking it in a process of its own")
        entrant.apart = check_apart(
            candidate,
            str(device),
            problems,
            seed=settings.seed,
            timeout_s=settings.timeout_s,
        )
        if not any(outcome.status is Status.PASSED for outcome in entrant.apart):
            return entrant
    try:
        entrant.implementation = resolve(candidate, device)
    except (ImportError, TypeError, ValueError) as error:
        status = Status.MISSING if candidate.users else Status.UNAVAILABLE
        entrant.trouble = Outcome(status, str(error))
    except Exception as error:
        entrant.trouble = outcome_of(error)
    return entrant


class _Contest:
    """One problem."""

    def __init__(
        self,
        problem: Problem,
        index: int,
        entrants: Sequence[_Entrant],
        device: torch.device,
        settings: Settings,
        progress: Progress,
    ) -> None:
        self.problem = problem
        self.device = device
        self.settings = settings
        self.progress = progress
        self.cache = devices.last_level_cache(device)
        self.outcomes = {e.candidate.name: self._before(e, index) for e in entrants}
        self.running = {
            e.candidate.name: e.implementation
            for e in entrants
            if e.implementation is not None and self.outcomes[e.candidate.name] == PASSED
        }

    def result(self) -> ProblemResult:
        cost = self.problem.cost
        facts: dict[str, Any] = {"sets": 0, "set_bytes": 0, "cache_bytes": self.cache}
        speed = (0.0, 0.0)
        watches: dict[str, Stopwatch] = {}
        if self.running:
            try:
                rotation = self._rotation()
            except MemoryError as error:
                for name in self.running:
                    self.outcomes[name] = Outcome(Status.TOO_LARGE, str(error))
            else:
                facts["sets"], facts["set_bytes"] = len(rotation.calls), rotation.total_bytes
                watches, speed = self._measure(rotation)
        return ProblemResult(
            self.problem,
            cost,
            *speed,
            **facts,
            measured=tuple(
                Measured(
                    name,
                    outcome,
                    watches[name].sample if outcome == PASSED and name in watches else None,
                )
                for name, outcome in self.outcomes.items()
            ),
        )

    def _before(self, entrant: _Entrant, index: int) -> Outcome:
        """What is known before the problem itself is run."""
        if entrant.apart and entrant.apart[index].status is not Status.PASSED:
            return entrant.apart[index]
        if entrant.trouble is not None:
            return entrant.trouble
        assert entrant.implementation is not None
        if entrant.candidate.users:
            return PASSED
        spec = self.problem.spec
        if spec not in entrant.layers:
            self.progress(f"{self.problem.shape}: checking {entrant.candidate.name}")
            entrant.layers[spec] = check_layer(entrant.implementation, self.problem, self.device)
        return entrant.layers[spec]

    def _rotation(self) -> Rotation:
        implementations = list(self.running.values())
        # Adapters hold a copy of their own of each set.
        copies = 1 + sum(i.prepare is not None for i in implementations)
        return make_rotation(
            self.problem,
            self.device,
            implementations,
            cache=self.cache,
            memory=self.settings.memory // copies,
            seed=self.settings.seed,
        )

    def _measure(self, rotation: Rotation) -> tuple[dict[str, Stopwatch], tuple[float, float]]:
        expected = expected_output(rotation.first.host)
        self._check_recorded(expected)
        rotation = self._check(rotation, expected)
        runs: dict[str, list[Callable[[], None]]] = {}
        for name, implementation in list(self.running.items()):
            with _Catching(self, name):
                runs[name] = [bind(implementation, call) for call in rotation.calls]
        watches = {
            name: Stopwatch(each, self.device, self.settings.min_time_s)
            for name, each in runs.items()
        }
        ceilings = Ceilings(
            self.device, self.problem.spec.dtype, self.cache, self.settings.memory // 4
        )
        for number in range(self.settings.repeats):
            self.progress(f"{self.problem.label}: round {number + 1} of {self.settings.repeats}")
            time.sleep(self.settings.pause_s)
            ceilings.measure()
            # Each goes first in turn: the machine is coolest after a pause.
            names = [name for name in watches if name in self.running]
            turn = number % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                time.sleep(self.settings.pause_s)
                with _Catching(self, name):
                    watches[name].measure()
        # What it computes at full speed must be right too.
        placed = rotation.first
        for name in [name for name in runs if name in self.running]:
            placed.reset()
            with _Catching(self, name):
                runs[name][0]()
                problem = wrong_values(placed, expected)
                if problem is not None:
                    self._drop(name, Outcome(Status.WRONG, f"after the timed runs: {problem}"))
        return watches, (ceilings.bytes_per_second, ceilings.operations_per_second)

    def _check(self, rotation: Rotation, expected: torch.Tensor) -> Rotation:
        """Checks every implementation on the first set; what one spoils is made anew."""
        first = rotation.first
        for name, implementation in list(self.running.items()):
            self.progress(f"{self.problem.label}: checking {name}")
            first.reset()
            with _Catching(self, name):
                check(implementation, first, expected)
            if name not in self.running:
                first = place_call(first.host, self.device, rotation.neediest)
        return dataclasses.replace(rotation, first=first)

    def _check_recorded(self, expected: torch.Tensor) -> None:
        """A recorded output is one more result, which is not timed."""
        output = self.problem.recorded_output
        if output is not None:
            problem = difference(output[: expected.shape[0]], expected)
            self.outcomes[RECORDED] = PASSED if problem is None else Outcome(Status.WRONG, problem)

    def _drop(self, name: str, outcome: Outcome) -> None:
        self.outcomes[name] = outcome
        self.running.pop(name, None)


class _Catching:
    """Turns an exception of an implementation into its outcome; it runs no more."""

    def __init__(self, contest: _Contest, name: str) -> None:
        self.contest = contest
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self.contest._drop(self.name, outcome_of(error))
            return True
        return False
