# SPDX-License-Identifier: Apache-2.0
"""When the devices ran what: a span of each command, and of each of a graph's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from vllm_anvil import _C

# A decode step of a model of 30 layers has about a thousand commands.
CAPACITY = 1 << 20


class Span(NamedTuple):
    """One run of a command.

    Attributes:
        begin_ns, end_ns: of the clock of ``time.perf_counter_ns``.
        stream: id of the stream it ran on.
        depth: 0; more for a run that is part of one that encloses it, as a node is of its graph's.
    """

    name: str
    begin_ns: int
    end_ns: int
    device: int
    stream: int
    depth: int


class Spans(list[Span]):
    """Spans in the order in which they ended.

    Attributes:
        dropped: the number of those that there was no room for.
    """

    dropped: int = 0


@contextmanager
def trace(capacity: int = CAPACITY) -> Iterator[Spans]:
    """Traces all devices of the process inside; what is yielded is filled on leaving.

    Wait for the devices before leaving: what runs later is not in it. There is one trace at a
    time; a second one that is started forgets what the first has found.
    """
    spans = Spans()
    _C.trace_start(capacity)
    try:
        yield spans
    finally:
        _C.trace_stop()
        taken, spans.dropped = _C.trace_take()
        spans.extend(map(Span._make, taken))
