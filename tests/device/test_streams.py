# SPDX-License-Identifier: Apache-2.0
"""Streams and events, through torch.anvil, torch.Stream and torch.accelerator."""

from __future__ import annotations

import threading

import pytest
import torch

import vllm_anvil.device  # noqa: F401


def test_current_stream_follows_the_context() -> None:
    default = torch.anvil.default_stream()
    assert torch.anvil.current_stream() == default and default.stream_id == 0
    side = torch.anvil.Stream()
    assert side != default and isinstance(side, torch.Stream)
    with torch.anvil.stream(side) as entered:
        assert entered is side and torch.anvil.current_stream() == side
        assert torch.accelerator.current_stream() == side
        x = torch.ones(4, device="anvil") * 2
    assert torch.anvil.current_stream() == default
    default.wait_stream(side)
    assert x.sum().item() == 8
    with torch.anvil.stream(None):
        assert torch.anvil.current_stream() == default
    with side:
        assert torch.anvil.current_stream() == side


def test_stream_is_per_thread() -> None:
    seen = []
    with torch.anvil.stream(torch.anvil.Stream()):
        thread = threading.Thread(
            target=lambda: seen.append(torch.anvil.current_stream().stream_id)
        )
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_query_synchronize_priority() -> None:
    urgent = torch.anvil.Stream(priority=-1)
    assert urgent.priority == -1 and torch.anvil.Stream().priority == 0
    assert urgent.query()
    urgent.synchronize()
    assert torch.anvil.Stream(urgent) == urgent
    torch.anvil.synchronize()


def test_events_order_and_time() -> None:
    start, end = torch.anvil.Event(enable_timing=True), torch.anvil.Event(enable_timing=True)
    assert start.query()
    start.record()
    torch.rand(200, 200, device="anvil") @ torch.rand(200, 200, device="anvil")
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    side = torch.anvil.Stream()
    end.wait(side)
    side.wait_event(end)
    event = side.record_event()
    event.synchronize()
    assert event.query()
    generic = torch.Event(device="anvil", enable_timing=True)
    generic.record(torch.accelerator.current_stream())
    generic.synchronize()


def test_events_without_timing_refuse_to_be_timed() -> None:
    start, end = torch.anvil.Event(), torch.anvil.Event()
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match="(?i)tim"):
        start.elapsed_time(end)
    with pytest.raises(NotImplementedError, match="processes"):
        torch.anvil.Event(interprocess=True)


def test_record_stream_is_accepted() -> None:
    x = torch.ones(4, device="anvil")
    x.record_stream(torch.anvil.Stream())
    assert x.sum().item() == 4
