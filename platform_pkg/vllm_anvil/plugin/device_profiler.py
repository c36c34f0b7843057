# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler for a worker, with what the device ran in its traces and tables.

PyTorch sees what the host calls. On a device that runs asynchronously, and replays graphs, that is
not where the time goes; so the device's own trace is taken meanwhile, and added to what PyTorch has
found, in the form in which traces of other devices have it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerAction
from vllm.config import ProfilerConfig
from vllm.logger import init_logger
from vllm.profiler.wrapper import TorchProfilerWrapper

from vllm_anvil.device.trace import Span, Spans, trace
from vllm_anvil.plugin.seams.profiler_devices import ACTIVITIES

logger = init_logger("vllm.plugins.anvil.profiler")

RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
# The categories by which readers of traces know what is work of a device. A graph is none: its
# nodes are.
CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset", "graph": "graph"}


def of_worker(
    config: ProfilerConfig, device: torch.device, local_rank: int
) -> DeviceProfiler | None:
    """For a worker with this configuration; None where the engine's own profiler will do."""
    chosen = config.torch_profiler_activities
    if config.profiler != "torch" or (chosen is not None and "PrivateUse1" not in chosen):
        return None
    return DeviceProfiler(config, device, local_rank)


class DeviceProfiler(TorchProfilerWrapper):
    """Records on the device whenever PyTorch's profiler records on the host.

    The device has one trace at a time in a process: while it is taken here, nothing else may.
    """

    def __init__(self, config: ProfilerConfig, device: torch.device, local_rank: int) -> None:
        super().__init__(
            config,
            worker_name="",  # the engine names each session before it starts
            local_rank=local_rank,
            activities=config.torch_profiler_activities or list(ACTIVITIES),
            on_trace_ready=self._write,
        )
        self._device = device
        self._spans = Spans()
        self._trace = contextlib.ExitStack()
        self._tracing = False
        # PyTorch imports some of its profiler at the first annotation. Of a module that is imported
        # while Python's calls are recorded it keeps a name that is gone afterwards; what it reads
        # there instead may be no text, which ends the session without a table.
        with torch.profiler.record_function("imports"):
            pass

    def _start(self) -> None:
        super()._start()
        self._follow()

    def _stop(self) -> None:
        try:
            super()._stop()
        finally:
            self._end_trace()

    def _profiler_step(self) -> bool:
        recorded = super()._profiler_step()
        self._follow()
        return recorded

    def _follow(self) -> None:
        if not self._tracing and self.profiler.current_action in RECORDING:
            self._spans = self._trace.enter_context(trace())
            self._tracing = True

    def _end_trace(self) -> None:
        self._tracing = False
        self._trace.close()

    def _write(self, profiler: torch.profiler.profile) -> None:
        """Called by PyTorch when a trace is complete, the host's part of it."""
        torch.accelerator.synchronize(self._device)
        self._end_trace()
        spans = self._spans
        if spans.dropped:
            logger.warning(
                "%d commands of %s found no room in the trace: profile fewer steps.",
                spans.dropped,
                self._device,
            )
        folder = Path(self._torch_profiler_trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self._worker_name}.{time.time_ns()}.pt.trace.json"
        hosts = file.with_suffix(".host")
        try:
            profiler.export_chrome_trace(str(hosts))
            add_to_trace(hosts, spans, file, compress=self._torch_profiler_use_gzip)
        finally:
            hosts.unlink(missing_ok=True)
        # After this PyTorch's tables, which the engine writes next, have them too.
        profiler.events().extend(function_events(spans))  # type: ignore[union-attr]


def function_events(spans: Iterable[Span]) -> Iterator[FunctionEvent]:
    """What tables of PyTorch's profiler are made of, each with the time that is its own: a graph's
    is without its nodes'."""
    inner: dict[tuple[int, int, int], int] = {}  # (device, stream, depth) -> ns of those within
    for number, span in enumerate(spans):  # in the order in which they ended: nodes come first
        place = (span.device, span.stream)
        whole = span.end_ns - span.begin_ns
        own = whole - inner.pop((*place, span.depth + 1), 0)
        if span.depth:
            inner[*place, span.depth] = inner.get((*place, span.depth), 0) + whole
        yield FunctionEvent(
            id=number,
            name=span.name,
            thread=span.stream,
            start_us=span.begin_ns / 1e3,
            end_us=(span.begin_ns + own) / 1e3,
            stack=[],
            input_shapes=[],
            use_device="anvil",
            device_type=DeviceType.PrivateUse1,
            device_index=span.device,
        )


def add_to_trace(hosts: Path, spans: Iterable[Span], file: Path, compress: bool) -> None:
    """Writes `file`, or with `compress` file.gz: the trace that PyTorch wrote to `hosts` with the
    spans in it.

    Such traces may be much larger than memory allows to read at once: they are copied. Raises
    ValueError where PyTorch's trace is not of the form that is known here.
    """
    with hosts.open("rb") as source:
        head = source.read(1 << 16)
        base = re.search(rb'"baseTimeNanoseconds":\s*(\d+)', head)
        begin = re.search(rb'"traceEvents":\s*\[', head)
        if base is None or begin is None:
            raise ValueError(f"PyTorch's trace has no traceEvents or base time: {head[:200]!r}")
        events = [json.dumps(event) for event in chrome_events(spans, int(base[1]))]
        source.seek(begin.end())
        target = file.with_name(f"{file.name}.gz") if compress else file
        with gzip.open(target, "wb") if compress else target.open("wb") as result:
            result.write(head[: begin.end()])
            # PyTorch's own events, of which there always are some, follow.
            result.write("".join(f"\n{event}," for event in events).encode())
            shutil.copyfileobj(source, result)


def chrome_events(spans: Iterable[Span], base_ns: int) -> Iterator[dict[str, Any]]:
    """The spans as events of Chrome's tracing: a process for each device, a thread for each stream.

    Args:
        base_ns: what times are counted from, in nanoseconds since 1970.
    """
    shift = time.time_ns() - time.perf_counter_ns() - base_ns
    places: dict[tuple[int, int], None] = {}
    for span in spans:
        places[span.device, span.stream] = None
        yield {
            "ph": "X",
            "cat": CATEGORIES.get(span.name, "kernel"),
            "name": span.name,
            "pid": span.device,
            "tid": span.stream,
            "ts": (span.begin_ns + shift) / 1e3,
            "dur": (span.end_ns - span.begin_ns) / 1e3,
            "args": {"device": span.device, "stream": span.stream},
        }
    for device in sorted({device for device, _ in places}):
        about: dict[str, Any] = {"ph": "M", "pid": device, "tid": 0, "ts": 0}
        yield {**about, "name": "process_name", "args": {"name": f"process {os.getpid()}"}}
        yield {**about, "name": "process_labels", "args": {"labels": f"anvil:{device}"}}
        for stream in sorted(stream for where, stream in places if where == device):
            label = {"name": f"stream {stream}"}
            yield {**about, "tid": stream, "name": "thread_name", "args": label}
