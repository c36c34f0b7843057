# SPDX-License-Identifier: Apache-2.0
"""Times ops on the cases of their tables, beside the reference, separate ops for what one op
does at once, the engine's kernel and the machine's own bandwidth. Nothing here prints.

All that is compared runs in turns within one measurement, since a machine's clock changes from
minute to minute. Before each turn there is a pause: where several libraries have a thread pool,
the threads of the one that ran last still spin for milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_anvil.testing.expectation import Expectation, copied
from vllm_anvil.testing.op_case import Arguments, Case, Op, changed
from vllm_anvil.testing.parity import Peers, call, synchronize, told

ROUNDS = 7
PAUSE_S = 0.005
# Copies of the arguments take turns until they are this large together, so that a large call finds
# nothing of its data in a cache that its last repetition left there.
ROTATED_BYTES = 256 << 20
MOST_COPIES = 16
CEILING_BYTES = 256 << 20
DEFAULT_CASES = 2

CEILING = "ceiling"
REFERENCE = "reference"
UNFUSED = "unfused"


@dataclass(frozen=True)
class Timing:
    """One case of an op.

    Attributes:
        seconds: per call, the median of the rounds, by implementation: "op", "reference",
            "unfused" where the table has separate ops for it, and each peer that takes the case.
        moved_bytes: that a call must move at least; None where the table does not say.
        operations: arithmetic operations that a call must do at least, likewise.
        ceiling: bytes per second that this device reads from memory, measured in between.
        problem: why nothing was timed: the result is wrong, or the call failed.
    """

    op: str
    case: str
    seconds: dict[str, float] = field(default_factory=dict)
    moved_bytes: int | None = None
    operations: int | None = None
    ceiling: float = 0.0
    problem: str | None = None

    def bandwidth(self, implementation: str = "op") -> float | None:
        """Bytes per second."""
        if self.moved_bytes is None or implementation not in self.seconds:
            return None
        return self.moved_bytes / self.seconds[implementation]

    def of_ceiling(self) -> float | None:
        """The op's bandwidth as a fraction of what the device can read."""
        bandwidth = self.bandwidth()
        return bandwidth / self.ceiling if bandwidth is not None and self.ceiling else None

    def times_as_fast_as(self, other: str) -> float | None:
        """The other implementation's time over the op's."""
        return self.seconds[other] / self.seconds["op"] if other in self.seconds else None


def cases_of(op: Op) -> tuple[Case, ...]:
    """The op's benchmark cases, or its largest ordinary ones."""
    if op.benchmarks:
        return op.benchmarks
    ordinary = [case for case in op.cases if case.kind == "ordinary" and case.raises is None]
    largest = sorted(ordinary, key=lambda case: size(case.arguments()), reverse=True)
    return tuple(largest[:DEFAULT_CASES])


def size(arguments: Arguments) -> int:
    """Bytes of all tensors."""
    sizes: list[int] = []
    changed(arguments, lambda value: sizes.append(value.numel() * value.element_size()))
    return sum(sizes)


def measure(
    op: Op, device: torch.device | str, seconds: float, peers: Peers | None = None
) -> Iterator[Timing]:
    """Times the op's benchmark cases, each implementation for about `seconds`.

    The op, its reference and the separate ops that it stands for run on `device`, peers on the CPU.
    Results are compared with float64 first; a wrong one is not timed.
    """
    for case in cases_of(op):
        yield _measure(op, case, torch.device(device), seconds, {**op.peers, **(peers or {})})


def _measure(op: Op, case: Case, device: torch.device, seconds: float, peers: Peers) -> Timing:
    name = op.qualified_name
    try:
        expected = Expectation(op, case)
        outcome = call(op, expected, device)
        problems = [outcome.problem] if outcome.problem else []
        problems += [f"{n}: {c}" for n, c in outcome.comparisons.items() if not c.passed]
        if problems:
            return Timing(name, case.name, problem=problems[0])
        arguments = expected.arguments
        contenders = {
            "op": _Contender(op.run, arguments, device),
            REFERENCE: _Contender(_by_name(op.reference), arguments, device),
            CEILING: _Contender(_read, {"buffer": torch.zeros(CEILING_BYTES // 4)}, device),
        }
        if op.unfused is not None:
            contenders[UNFUSED] = _Contender(_by_name(op.unfused), arguments, device)
        for peer, function in peers.items():
            if _takes(op, expected, function):
                contenders[peer] = _Contender(_by_name(function), arguments, torch.device("cpu"))
        found = _alternate(contenders, seconds)
    except Exception as error:
        return Timing(name, case.name, problem=told(error))
    return Timing(
        name,
        case.name,
        seconds=found,
        moved_bytes=op.moved_bytes(arguments) if op.moved_bytes else None,
        operations=op.operations(arguments) if op.operations else None,
        ceiling=CEILING_BYTES / found.pop(CEILING),
    )


def _takes(op: Op, expected: Expectation, peer: Callable[..., Any]) -> bool:
    """Whether a peer takes the arguments; one that takes them and fails is left out as well."""
    try:
        return call(op, expected, torch.device("cpu"), peer=_by_name(peer)).problem is None
    except NotImplementedError:
        return False


def _by_name(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    return lambda arguments: function(**arguments)


def _read(arguments: Arguments) -> Any:
    """Reads all of a buffer: the op that exists to measure that, else a sum."""
    if hasattr(torch.ops.anvil, "ceiling_read"):
        return torch.ops.anvil.ceiling_read(arguments["buffer"])
    return arguments["buffer"].sum()


class _Contender:
    """Something to be called over and over, on copies of the arguments that take turns."""

    def __init__(
        self, run: Callable[[Arguments], Any], arguments: Arguments, device: torch.device
    ) -> None:
        self.device = device
        self._run = run
        count = max(1, min(MOST_COPIES, ROTATED_BYTES // max(1, size(arguments))))
        self._copies = [
            changed(copied(arguments), lambda value: value.to(device)) for _ in range(count)
        ]
        self._next = 0
        self.repeat = 1

    def time(self) -> float:
        """Seconds per call of `repeat` calls."""
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.repeat):
            self._run(self._copies[self._next])
            self._next = (self._next + 1) % len(self._copies)
        synchronize(self.device)
        return (time.perf_counter() - start) / self.repeat

    def calibrate(self, seconds: float) -> None:
        """Chooses `repeat` such that one turn takes about that long."""
        self.time()
        self.repeat = max(1, int(seconds / max(self.time(), 1e-9)))


def _alternate(contenders: Mapping[str, _Contender], seconds: float) -> dict[str, float]:
    """Median seconds per call of each, taken in turns."""
    for contender in contenders.values():
        time.sleep(PAUSE_S)
        contender.calibrate(seconds / ROUNDS)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            time.sleep(PAUSE_S)
            found[name].append(contender.time())
    return {name: statistics.median(values) for name, values in found.items()}
