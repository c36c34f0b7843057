# SPDX-License-Identifier: Apache-2.0
"""What was measured, as numbers and as records for files."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .checking import Outcome, Status
from .cost import Cost
from .problem import Problem
from .timing import Sample

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Measured:
    """One implementation on one problem; `sample` is None where it was not timed."""

    name: str
    outcome: Outcome
    sample: Sample | None = None


@dataclass(frozen=True)
class ProblemResult:
    """All implementations on one problem.

    Attributes:
        bytes_per_second, operations_per_second: the ceilings, 0 where nothing was timed.
        sets: of inputs, between which runs rotated.
        set_bytes: that all of them make a run read.
        cache_bytes: of the last-level cache.
    """

    problem: Problem
    cost: Cost
    bytes_per_second: float
    operations_per_second: float
    sets: int
    set_bytes: int
    cache_bytes: int
    measured: tuple[Measured, ...]

    @property
    def ideal_seconds(self) -> float:
        """The time that the binding ceiling allows."""
        if self.bytes_per_second == 0 or self.operations_per_second == 0:
            return 0.0
        return max(
            self.cost.moved_bytes / self.bytes_per_second,
            self.cost.operations / self.operations_per_second,
        )

    @property
    def bound(self) -> str:
        """The ceiling that binds: "memory" or "arithmetic"."""
        memory = self.cost.moved_bytes * self.operations_per_second
        return "memory" if memory >= self.cost.operations * self.bytes_per_second else "arithmetic"

    def fraction(self, measured: Measured) -> float | None:
        """The ideal time as a fraction of the measured one."""
        if measured.sample is None:
            return None
        return self.ideal_seconds / measured.sample.median

    def ratio(self, measured: Measured, baseline: str) -> float | None:
        """How many times as fast as the baseline it is."""
        other = next((m for m in self.measured if m.name == baseline), None)
        if measured.sample is None or other is None or other.sample is None:
            return None
        return other.sample.median / measured.sample.median


@dataclass(frozen=True)
class Results:
    """A whole run.

    Attributes:
        machine: name and software of the device.
        settings: of the run.
        notes: what must be known of an implementation, by name.
    """

    machine: dict[str, str]
    settings: dict[str, Any]
    baseline: str
    problems: tuple[ProblemResult, ...]
    notes: dict[str, str]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(m.name for p in self.problems for m in p.measured))

    def mean_ratio(self, name: str) -> tuple[float, int] | None:
        """The geometric mean of the ratios to the baseline, and of how many problems."""
        ratios = [
            ratio
            for problem in self.problems
            for measured in problem.measured
            if measured.name == name
            and (ratio := problem.ratio(measured, self.baseline)) is not None
        ]
        return (statistics.geometric_mean(ratios), len(ratios)) if ratios else None

    def failed(self, named: set[str]) -> bool:
        """Whether an implementation failed, one that was asked for (`named`) was not available, or
        nothing was measured at all."""
        everything = [m for p in self.problems for m in p.measured]
        return (
            any(m.outcome.status.is_failure for m in everything)
            or any(m.outcome.status is Status.UNAVAILABLE and m.name in named for m in everything)
            or all(m.sample is None for m in everything)
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """A flat record per problem and implementation."""
        for result in self.problems:
            spec = result.problem.spec
            for measured in result.measured:
                row: dict[str, Any] = {
                    "shape": result.problem.shape,
                    "batch": result.problem.batch,
                    "kind": result.problem.kind,
                    "num_heads": spec.num_heads,
                    "num_kv_heads": spec.num_kv_heads,
                    "head_size": spec.head_size,
                    "value_head_size": spec.value_head_size,
                    "block_size": spec.block_size,
                    "layout": result.problem.layout,
                    "dtype": _short(spec.dtype),
                    "kv_dtype": _short(spec.kv_dtype),
                    "sliding_window": spec.sliding_window,
                    "logits_soft_cap": spec.logits_soft_cap,
                    "sinks": spec.has_sinks,
                    "alibi": spec.has_alibi,
                    "implementation": measured.name,
                    "status": measured.outcome.status.value,
                    "message": measured.outcome.message,
                    "moved_bytes": result.cost.moved_bytes,
                    "operations": result.cost.operations,
                    "ceiling_bytes_per_second": result.bytes_per_second,
                    "ceiling_operations_per_second": result.operations_per_second,
                    "bound": result.bound,
                    "input_sets": result.sets,
                    "input_bytes": result.set_bytes,
                    "cache_bytes": result.cache_bytes,
                }
                sample = measured.sample
                row |= {
                    "median_s": None if sample is None else sample.median,
                    "fastest_s": None if sample is None else sample.fastest,
                    "spread": None if sample is None else sample.spread,
                    "bytes_per_second": _rate(result.cost.moved_bytes, sample),
                    "operations_per_second": _rate(result.cost.operations, sample),
                    "fraction_of_ceiling": result.fraction(measured),
                    "ratio_to_baseline": result.ratio(measured, self.baseline),
                }
                yield row

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the rows with every measurement, and what they were measured with."""
        samples = [
            None if m.sample is None else list(m.sample.seconds)
            for p in self.problems
            for m in p.measured
        ]
        means = {name: self.mean_ratio(name) for name in self.names}
        return {
            "format": FORMAT_VERSION,
            "machine": self.machine,
            "settings": self.settings,
            "baseline": self.baseline,
            "notes": self.notes,
            "geometric_mean_ratio": {
                name: {"ratio": mean[0], "problems": mean[1]}
                for name, mean in means.items()
                if mean is not None
            },
            "results": [
                row | {"seconds": seconds}
                for row, seconds in zip(self.rows(), samples, strict=True)
            ],
        }

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n")

    def write_csv(self, path: Path) -> None:
        rows = list(self.rows())
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)


def _rate(amount: int, sample: Sample | None) -> float | None:
    return None if sample is None else amount / sample.median


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
