# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes: what the device ran, what the host did, and when the device waited."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

# Commands of the runtime itself; the rest without a namespace are Triton kernels.
RUNTIME = frozenset({"graph", "memcpy", "memset", "zero fill", "poison", "free", "unnamed"})
OUTSIDE = "between steps"


class Segment(NamedTuple):
    """A stretch of time, in nanoseconds, that belongs to one name."""

    name: str
    begin: int
    end: int

    def within(self, begin: int, end: int) -> Segment:
        return Segment(self.name, max(self.begin, begin), min(self.end, end))


def innermost(spans: Iterable[Segment]) -> list[Segment]:
    """Cuts spans that lie within one another into stretches that follow one another, each of the
    innermost span at that time."""
    found: list[Segment] = []
    open_spans: list[Segment] = []
    at = 0

    def advance(to: int) -> None:
        nonlocal at
        while open_spans and at < to:
            top = open_spans[-1]
            end = min(top.end, to)
            if end > at:
                found.append(Segment(top.name, at, end))
                at = end
            if top.end <= to:
                open_spans.pop()
        at = max(at, to)

    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        advance(span.begin)
        open_spans.append(span)
    advance(max((span.end for span in open_spans), default=at))
    return found


@dataclass(frozen=True)
class OpTime:
    """One kind of command on the device. Times are its own: a graph's are without its nodes'."""

    name: str
    kind: str
    calls: int
    in_graphs: int
    seconds: float


@dataclass(frozen=True)
class PhaseTime:
    """What the host did, and for how long of it the device had nothing to run."""

    name: str
    seconds: float
    device_idle: float


@dataclass(frozen=True)
class StepProfile:
    """Of a number of steps that followed one another; all times are of all of them, in seconds.

    Attributes:
        untraced: of one step when nothing was written down.
        missing: what of the host could not be looked at.
    """

    steps: int
    seconds: float
    untraced: float
    busy: float
    ops: list[OpTime]
    phases: list[PhaseTime]
    dropped: int
    missing: list[str]

    @classmethod
    def from_report(cls, found: Mapping[str, Any]) -> StepProfile:
        """From what profile_child.py reports."""
        begin, end = found["begin_ns"], found["end_ns"]
        device = [
            (Segment(name, first, last), depth)
            for name, first, last, _, _, depth in found["device"]
            if last > begin and first < end
        ]
        running = _clipped(innermost(segment for segment, _ in device), begin, end)
        host = _clipped(innermost(Segment(*span) for span in found["host"]), begin, end)
        return cls(
            steps=found["steps"],
            seconds=(end - begin) / 1e9,
            untraced=found["untraced_s"],
            busy=sum(s.end - s.begin for s in running) / 1e9,
            ops=_op_times(device, running),
            phases=_phase_times(host, gaps(running, begin, end), begin, end),
            dropped=found["dropped"],
            missing=found["missing"],
        )

    @property
    def idle(self) -> float:
        return self.seconds - self.busy

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"idle": self.idle}


def gaps(running: Sequence[Segment], begin: int, end: int) -> list[tuple[int, int]]:
    """When nothing of `running`, which is in order, runs between begin and end."""
    found = []
    for segment in running:
        if segment.begin > begin:
            found.append((begin, segment.begin))
        begin = max(begin, segment.end)
    if end > begin:
        found.append((begin, end))
    return found


def _clipped(segments: Iterable[Segment], begin: int, end: int) -> list[Segment]:
    clipped = (segment.within(begin, end) for segment in segments)
    return [segment for segment in clipped if segment.end > segment.begin]


def _kind(name: str) -> str:
    if name.startswith("anvil::"):
        return "native"
    if "::" in name:
        return "PyTorch"
    return "runtime" if name in RUNTIME else "Triton"


def _op_times(device: Sequence[tuple[Segment, int]], running: Iterable[Segment]) -> list[OpTime]:
    calls = Counter(segment.name for segment, _ in device)
    in_graphs = Counter(segment.name for segment, depth in device if depth > 0)
    times: defaultdict[str, int] = defaultdict(int)
    for segment in running:
        times[segment.name] += segment.end - segment.begin
    ops = [
        OpTime(name, _kind(name), calls[name], in_graphs[name], times[name] / 1e9) for name in calls
    ]
    return sorted(ops, key=lambda op: -op.seconds)


def _phase_times(
    host: Sequence[Segment], idle: Sequence[tuple[int, int]], begin: int, end: int
) -> list[PhaseTime]:
    """In the order in which they first occur; last, what lies between the engine's steps."""
    every = [*host, *(Segment(OUTSIDE, *gap) for gap in gaps(host, begin, end))]
    names = dict.fromkeys(segment.name for segment in every)
    times: defaultdict[str, int] = defaultdict(int)
    waits: defaultdict[str, int] = defaultdict(int)
    place = 0
    for segment in sorted(every, key=lambda s: s.begin):
        times[segment.name] += segment.end - segment.begin
        while place < len(idle) and idle[place][1] <= segment.begin:
            place += 1
        at = place
        while at < len(idle) and idle[at][0] < segment.end:
            waits[segment.name] += min(idle[at][1], segment.end) - max(idle[at][0], segment.begin)
            at += 1
    return [PhaseTime(name, times[name] / 1e9, waits[name] / 1e9) for name in names]


def chrome_trace(found: Mapping[str, Any]) -> dict[str, Any]:
    """All that was written down, in the form that Chrome's tracing and Perfetto read."""
    origin = min(
        (span[1] for span in [*found["host"], *found["device"]]), default=found["begin_ns"]
    )
    events: list[dict[str, Any]] = []

    def add(process: int, thread: int, name: str, begin: int, end: int) -> None:
        times = {"ts": (begin - origin) / 1e3, "dur": (end - begin) / 1e3}
        events.append({"ph": "X", "pid": process, "tid": thread, "name": name, **times})

    def call(process: int, thread: int | None, name: str) -> None:
        kind = "process_name" if thread is None else "thread_name"
        event = {"ph": "M", "pid": process, "name": kind, "args": {"name": name}}
        events.append(event if thread is None else {**event, "tid": thread})

    call(0, None, "host")
    call(0, 0, "engine")
    add(0, 1, f"{found['steps']} steps", found["begin_ns"], found["end_ns"])
    call(0, 1, "what the table counts")
    for name, begin, end in found["host"]:
        add(0, 0, name, begin, end)
    places = set()
    for name, begin, end, device, stream, _ in found["device"]:
        add(1 + device, stream, name, begin, end)
        places.add((device, stream))
    for device in sorted({device for device, _ in places}):
        call(1 + device, None, f"anvil:{device}")
    for device, stream in sorted(places):
        call(1 + device, stream, f"stream {stream}")
    return {"traceEvents": events, "displayTimeUnit": "ms"}
