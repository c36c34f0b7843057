# SPDX-License-Identifier: Apache-2.0
"""Streams and events, under torch.cuda's names."""

from __future__ import annotations

from typing import Any

import torch

from vllm_anvil import _C
from vllm_anvil.device.devices import DeviceLike, device_index


class Stream(torch.Stream):
    """A queue of work on a device; commands of one stream run in order.

    Args:
        device: the device, or None for the current one. May also be a `torch.Stream` of an anvil
            device: the result is then the same stream.
        priority: 0 is normal, negative is more urgent.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:  # stream_id, device_index, device_type: an existing stream
            return super().__new__(cls, **kwargs)
        if isinstance(device, torch.Stream):
            return super().__new__(
                cls,
                stream_id=device.stream_id,
                device_index=device.device_index,
                device_type=device.device_type,
            )
        return super().__new__(
            cls, device=torch.device("anvil", device_index(device)), priority=priority
        )

    @property
    def priority(self) -> int:
        return _C.stream_priority(self.device_index, self.stream_id)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.anvil.Stream device={self.device} id={self.stream_id}>"


class Event(torch.Event):
    """A point in a stream's work.

    Args:
        enable_timing: whether `elapsed_time` may be asked for.
        blocking: accepted as torch.cuda does; waits always sleep rather than spin.
        interprocess: not available.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        if interprocess:
            raise NotImplementedError("anvil events cannot be shared between processes")
        return super().__new__(
            cls, device=torch.device("anvil"), enable_timing=enable_timing, blocking=blocking
        )

    def record(self, stream: torch.Stream | None = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to `end_event`; both recorded, both made with timing."""
        # torch's own method accepts its base class only, not a subclass, as the other event.
        return _C.event_elapsed_time(self.event_id, end_event.event_id)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: DeviceLike = None) -> Stream:
    return _wrap(torch._C._accelerator_getStream(device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    index = device_index(device)
    device_type = torch._C._accelerator_getStream(index).device_type
    return Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` current for its device, and its device current. None does nothing."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that makes a stream current; restores stream and device. None: nothing."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self._previous: tuple[Stream, Stream] | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._previous = (current_stream(), current_stream(self.stream.device))
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *exc: Any) -> None:
        if self._previous is not None:
            caller, same_device = self._previous
            set_stream(same_device)
            set_stream(caller)
            self._previous = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager around a stream; see StreamContext."""
    return StreamContext(stream)


def _sleep(milliseconds: float, device: DeviceLike = None) -> None:
    """Queues a command that takes so long, for tests and measurements, as torch.cuda's does."""
    _C.sleep(device_index(device), int(milliseconds * 1000))
