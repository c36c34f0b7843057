# SPDX-License-Identifier: Apache-2.0
"""Runs two sides in turn, and what their figures say together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_anvil.bench.model_cost import Ceilings, Cost, ModelCost
from vllm_anvil.bench.run import Run, Runner, Tell
from vllm_anvil.bench.scenario import Kind, Scenario
from vllm_anvil.bench.side import ANVIL, Side


@dataclass(frozen=True)
class Figures:
    """One value per run of a side."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """From the least to the largest, relative to the median."""
        return (max(self.values) - min(self.values)) / self.median


@dataclass(frozen=True)
class Row:
    """What is known of one scenario.

    Attributes:
        figures: by side; those without a value are left out.
        ratio: how many times as fast, or as small, anvil is as the other: the median over repeats
            of the two runs that followed one another.
        of_floor: by side, the least possible time over the measured one: the median over runs, each
            with the ceilings measured around it.
        bound: what the floor is made of: "reading" or "arithmetic".
        same_tokens: the share of requests to which both sides gave the same tokens.
    """

    scenario: Scenario
    figures: dict[str, Figures]
    ratio: float | None
    of_floor: dict[str, float]
    bound: str | None
    same_tokens: float | None

    def rate(self, side: str) -> float | None:
        """Tokens per second of all requests; None where no requests are timed."""
        batch, prompt = self.scenario.batch, self.scenario.prompt
        if not self.scenario.runs_requests:
            return None
        tokens = batch if self.scenario.kind is Kind.DECODE else batch * prompt
        return tokens / self.figures[side].median

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "kind": str(self.scenario.kind),
            "batch": self.scenario.batch,
            "prompt": self.scenario.prompt,
            "tokens": self.scenario.tokens,
            "sides": {
                name: {
                    "median": figures.median,
                    "spread": figures.spread,
                    "values": figures.values,
                    "tokens_per_second": self.rate(name),
                    "of_floor": self.of_floor.get(name),
                }
                for name, figures in self.figures.items()
            },
            "ratio": self.ratio,
            "bound": self.bound,
            "same_tokens": self.same_tokens,
        }


@dataclass
class Comparison:
    """The runs so far of one or two sides, anvil first.

    Attributes:
        cost: None where no floor is known for the model.
        dtype: of the model, in which the ceiling of arithmetic is measured.
    """

    sides: Sequence[Side]
    scenarios: Sequence[Scenario]
    cost: ModelCost | None
    dtype: str
    runs: list[Run] = field(default_factory=list)

    def run(self, runner: Runner, repeats: int, tell: Tell, kept: Callable[[], None]) -> None:
        """Runs the sides in turn, and calls `kept` after each run.

        Raises ChildFailed where a process dies or hangs (what it found before is kept), and
        run.Refused where a side is not what it was to be.
        """
        for repeat in range(repeats):
            for side in self.sides:
                before = self._ceilings(runner, tell)
                what = f"{side.name}, run {repeat + 1} of {repeats}"
                run, failure = runner.run(what, side, repeat, tell)
                if before is not None:
                    run.ceilings.append(before)
                    if self.runs:
                        self.runs[-1].ceilings.append(before)
                self.runs.append(run)
                kept()
                if failure is not None:
                    raise failure
        last = self._ceilings(runner, tell)
        if last is not None:
            self.runs[-1].ceilings.append(last)
            kept()

    def _ceilings(self, runner: Runner, tell: Tell) -> Ceilings | None:
        if self.cost is None or not any(s.runs_requests for s in self.scenarios):
            return None
        tell("measuring the machine's ceilings")
        return runner.measure_ceilings(self.sides[0], self.dtype)

    def rows(self) -> list[Row]:
        """One for each scenario of which something was measured."""
        rows = (self._row(scenario) for scenario in self.scenarios)
        return [row for row in rows if row.figures]

    def _row(self, scenario: Scenario) -> Row:
        figures = {
            side.name: Figures(values)
            for side in self.sides
            if (values := self._values(side, scenario))
        }
        cost = None if self.cost is None else self.cost.cost(scenario, self.dtype)
        fractions = {side.name: self._of_floor(side, scenario, cost) for side in self.sides}
        bounds = [cost.bound(r.ceiling) for r in self.runs if cost is not None and r.ceiling]
        return Row(
            scenario,
            figures,
            self._ratio(scenario),
            {name: value for name, value in fractions.items() if value is not None},
            statistics.mode(bounds) if bounds else None,
            self._same_tokens(scenario),
        )

    def _values(self, side: Side, scenario: Scenario) -> tuple[float, ...]:
        values = (run.value(scenario) for run in self.runs if run.side == side.name)
        return tuple(value for value in values if value is not None)

    def _of_floor(self, side: Side, scenario: Scenario, cost: Cost | None) -> float | None:
        if cost is None:
            return None
        fractions = [
            cost.seconds(run.ceiling) / value
            for run in self.runs
            if run.side == side.name and run.ceiling and (value := run.value(scenario))
        ]
        return statistics.median(fractions) if fractions else None

    def _pairs(self) -> list[tuple[Run, Run]]:
        """Anvil's run and the other's, of each repeat that has both."""
        ours = {run.repeat: run for run in self.runs if run.side == ANVIL}
        return [
            (ours[run.repeat], run) for run in self.runs if run.side != ANVIL and run.repeat in ours
        ]

    def _ratio(self, scenario: Scenario) -> float | None:
        both = [(ours.value(scenario), other.value(scenario)) for ours, other in self._pairs()]
        ratios = [other / ours for ours, other in both if ours and other]
        return statistics.median(ratios) if ratios else None

    def _same_tokens(self, scenario: Scenario) -> float | None:
        same = [
            mine == theirs
            for ours, other in self._pairs()
            for mine, theirs in zip(
                ours.tokens(scenario) or (), other.tokens(scenario) or (), strict=False
            )
        ]
        return statistics.fmean(same) if same else None

    def changed_tokens(self) -> list[str]:
        """Runs of anvil that gave other tokens than its first one did, for the same prompts."""
        runs = [run for run in self.runs if run.side == ANVIL and "check" in run.found]
        changed = []
        for run in runs[1:]:
            for number, (first, now) in enumerate(
                zip(runs[0].found["check"], run.found["check"], strict=True), 1
            ):
                if first != now:
                    place = next(
                        i for i, (a, b) in enumerate(zip(first, now, strict=True), 1) if a != b
                    )
                    changed.append(
                        f"run {run.repeat + 1} of {ANVIL} gave another token than run 1 did to "
                        f"the same prompt: number {place} of prompt {number}"
                    )
        return changed

    def as_dict(self) -> dict[str, Any]:
        """For JSON: times in seconds, memory in bytes, ratios as numbers."""
        return {
            "dtype": self.dtype,
            "rows": [row.as_dict() for row in self.rows()],
            "changed_tokens": self.changed_tokens(),
            "runs": [run.as_dict() for run in self.runs],
        }
