# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at best, measured between the runs that are compared with it.

Both figures move with the machine's load and clock, so one from another hour says little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from anvil_attention.verification import synchronise

# The buffer that is read is this many times the last-level cache, within these bounds.
BEYOND_CACHE = 4
SMALLEST_BUFFER = 64 << 20
LARGEST_BUFFER = 2 << 30
# A measurement of arithmetic takes this long at least.
MIN_TIME_S = 0.02
MOST_STEPS = 1 << 32


@dataclass
class Ceilings:
    """Bytes read and operations done per second, in measurements so far.

    Args:
        dtype: of the arithmetic.
        cache: bytes of the device's last-level cache.
        memory: bytes that the buffer may take.
    """

    device: torch.device
    dtype: torch.dtype
    cache: int
    memory: int
    read: list[float] = field(default_factory=list)
    arithmetic: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = min(max(BEYOND_CACHE * self.cache, SMALLEST_BUFFER), LARGEST_BUFFER, self.memory)
        # Values that were written: pages that never were may share one page of zeros.
        words = torch.arange(max(1, size // 8), dtype=torch.int64)
        self._buffer = words.to(self.device)
        self._seed = torch.linspace(0.5, 1.5, 4096).to(self.dtype).to(self.device)
        self._steps = 1

    def measure(self) -> None:
        """One measurement of each."""
        self._read()
        self._arithmetic()

    @property
    def bytes_per_second(self) -> float:
        return statistics.median(self.read)

    @property
    def operations_per_second(self) -> float:
        return statistics.median(self.arithmetic)

    def _read(self) -> None:
        seconds = self._time(lambda: torch.ops.anvil.ceiling_read(self._buffer))[0]
        self.read.append(self._buffer.nbytes / seconds)

    def _arithmetic(self) -> None:
        def run() -> torch.Tensor:
            return torch.ops.anvil.ceiling_arithmetic(self._seed, self._steps)

        run()
        seconds, result = self._time(run)
        while seconds < MIN_TIME_S and self._steps < MOST_STEPS:
            self._steps *= 2
            seconds, result = self._time(run)
        self.arithmetic.append(float(result[0]) / seconds)

    def _time(self, run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
        synchronise(self.device)
        begin = time.perf_counter()
        result = run()
        synchronise(self.device)
        return time.perf_counter() - begin, result
