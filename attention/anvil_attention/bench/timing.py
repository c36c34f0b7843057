# SPDX-License-Identifier: Apache-2.0
"""How long a call takes."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from anvil_attention.verification import synchronise

# Calls of one measurement at most, however short they are.
MOST_CALLS = 10_000


@dataclass(frozen=True)
class Sample:
    """Seconds per call of several measurements."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the middle half, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


class Stopwatch:
    """Times one implementation; calls take their inputs in turn.

    Args:
        runs: what computes each set of inputs.
        min_time_s: seconds of one measurement at least; calls are repeated until then.
    """

    def __init__(
        self, runs: Sequence[Callable[[], None]], device: torch.device, min_time_s: float
    ) -> None:
        self._runs = itertools.cycle(runs)
        self._device = device
        self._min_time_s = min_time_s
        self._calls = 0
        self.seconds: list[float] = []

    def measure(self) -> None:
        """One measurement, after a call that is not timed: it wakes the threads that compute."""
        self._time(1)
        if self._calls == 0:
            once = self._time(1)
            self._calls = min(MOST_CALLS, max(1, math.ceil(self._min_time_s / max(once, 1e-9))))
        self.seconds.append(self._time(self._calls))

    @property
    def sample(self) -> Sample:
        return Sample(tuple(self.seconds))

    def _time(self, calls: int) -> float:
        """Seconds per call."""
        synchronise(self._device)
        begin = time.perf_counter()
        for _ in range(calls):
            next(self._runs)()
        synchronise(self._device)
        return (time.perf_counter() - begin) / calls
