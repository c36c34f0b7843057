# SPDX-License-Identifier: Apache-2.0
"""Where time goes: made-up spans, and sums that are counted nanosecond by nanosecond."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from vllm_anvil.bench.profile_child import HostPhases
from vllm_anvil.bench.step_profile import (
    OUTSIDE,
    OpTime,
    PhaseTime,
    Segment,
    StepProfile,
    chrome_trace,
    gaps,
    innermost,
)


def report(**changes: Any) -> dict[str, Any]:
    """Two steps from 100 to 300: a graph of two nodes, an op, a Triton kernel and a copy."""
    return {
        "begin_ns": 100,
        "end_ns": 300,
        "steps": 2,
        "untraced_s": 9e-8,
        "dropped": 0,
        "missing": [],
        "device": [
            ["aten::mm", 50, 110, 0, 0, 0],
            ["aten::mm", 122, 140, 0, 0, 1],
            ["anvil::rms_norm", 140, 150, 0, 0, 1],
            ["graph", 120, 152, 0, 0, 0],
            ["_gumbel_kernel", 200, 230, 0, 0, 0],
            ["memcpy", 230, 240, 0, 7, 0],
            ["aten::mm", 320, 340, 0, 0, 0],
        ],
        "host": [["schedule", 105, 125], ["engine", 100, 190], ["engine", 210, 300]],
    } | changes


def test_ops() -> None:
    found = StepProfile.from_report(report())
    assert found.ops == [
        OpTime("_gumbel_kernel", "Triton", 1, 0, pytest.approx(30e-9)),
        OpTime("aten::mm", "PyTorch", 2, 1, pytest.approx(28e-9)),
        OpTime("anvil::rms_norm", "native", 1, 1, pytest.approx(10e-9)),
        OpTime("memcpy", "runtime", 1, 0, pytest.approx(10e-9)),
        OpTime("graph", "runtime", 1, 0, pytest.approx(4e-9)),
    ]
    assert found.busy == pytest.approx(82e-9) and found.idle == pytest.approx(118e-9)
    assert found.busy == pytest.approx(sum(op.seconds for op in found.ops))


def test_phases_and_the_idle_time_in_them() -> None:
    """The device runs in [100, 110), [120, 152), [200, 240)."""
    found = StepProfile.from_report(report())
    assert found.phases == [
        PhaseTime("engine", pytest.approx(160e-9), pytest.approx((38 + 60) * 1e-9)),
        PhaseTime("schedule", pytest.approx(20e-9), pytest.approx(10e-9)),
        PhaseTime(OUTSIDE, pytest.approx(20e-9), pytest.approx(10e-9)),
    ]
    assert sum(phase.seconds for phase in found.phases) == pytest.approx(found.seconds)
    assert sum(phase.device_idle for phase in found.phases) == pytest.approx(found.idle)


def test_nothing_at_all() -> None:
    found = StepProfile.from_report(report(device=[], host=[]))
    assert found.ops == [] and found.busy == 0
    assert found.phases == [PhaseTime(OUTSIDE, pytest.approx(2e-7), pytest.approx(2e-7))]


def nested(chance: random.Random, begin: int, end: int, level: int) -> list[Segment]:
    """Spans that lie side by side between begin and end, with others in them."""
    spans, at = [], begin
    while at < end - 1 and chance.random() < 0.8:
        first = chance.randrange(at, end - 1)
        last = chance.randrange(first + 1, end)
        spans.append(Segment(f"{level}-{chance.randrange(3)}", first, last))
        if level < 3:
            spans += nested(chance, first, last, level + 1)
        at = last
    return spans


@pytest.mark.parametrize("seed", range(30))
def test_every_nanosecond_is_the_innermost_spans(seed: int) -> None:
    chance = random.Random(seed)
    spans = nested(chance, 0, 300, 0)
    chance.shuffle(spans)
    owner: dict[int, str] = {}
    # A name begins with its level: the deepest at each time comes last.
    for span in sorted(spans, key=lambda s: int(s.name[0])):
        owner |= dict.fromkeys(range(span.begin, span.end), span.name)
    found = innermost(spans)
    assert all(a.end <= b.begin for a, b in pairwise(found))
    times: Counter[str] = Counter()
    for segment in found:
        times[segment.name] += segment.end - segment.begin
    assert times == Counter(owner.values())
    free = gaps(found, 0, 300)
    assert sum(end - begin for begin, end in free) == 300 - len(owner)
    assert not any(at in owner for begin, end in free for at in range(begin, end))


def test_timeline() -> None:
    found = report()
    events = chrome_trace(found)["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert len(whole) == len(found["device"]) + len(found["host"]) + 1
    first = next(event for event in whole if event["name"] == "aten::mm")
    assert (first["ts"], first["dur"]) == (0.0, 0.06)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names >= {"host", "engine", "anvil:0", "stream 0", "stream 7"}


class Engine:
    def step(self, number: int) -> int:
        """What a step does."""
        if number == 13:
            raise ValueError("thirteen")
        return 2 * number


def test_functions_are_wrapped() -> None:
    engine, phases = Engine(), HostPhases()
    phases.wrap("engine", engine, "step")
    phases.wrap("engine", engine, "stride")
    assert phases.missing == ["engine: no stride in Engine"]
    assert engine.step(4) == 8 and phases.spans == []
    phases.on = True
    assert engine.step(5) == 10 and engine.step.__doc__ == "What a step does."
    with pytest.raises(ValueError, match="thirteen"):
        engine.step(13)
    assert [name for name, _, _ in phases.spans] == ["engine", "engine"]
    assert all(begin <= end for _, begin, end in phases.spans)
