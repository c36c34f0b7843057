# SPDX-License-Identifier: Apache-2.0
"""Streams run asynchronously: what is queued, what waits, what is kept, and how errors come back.

A long command (`torch.anvil._sleep`) stands before what is tested: a call that returns while the
stream is still busy was queued.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

import vllm_anvil.device  # noqa: F401

pytestmark = pytest.mark.skipif(
    "os.environ.get('ANVIL_LAUNCH_BLOCKING') == '1'", reason="these need asynchronous streams"
)

LONG_MS = 150


@pytest.fixture(autouse=True)
def settled():
    torch.anvil.synchronize()
    yield
    torch.anvil.synchronize()


def busy(stream: torch.Stream | None = None) -> torch.Stream:
    """Occupies a stream (the current one) for LONG_MS."""
    stream = torch.anvil.current_stream() if stream is None else stream
    with torch.anvil.stream(stream):
        torch.anvil._sleep(LONG_MS)
    assert not stream.query()
    return stream


QUEUED = {
    "add": lambda x, i: x + x,
    "mm": lambda x, i: x @ x,
    "in place": lambda x, i: x.mul_(2),
    "out": lambda x, i: torch.add(x, x, out=torch.empty_like(x)),
    "scalar": lambda x, i: x * 2.5,
    "reduction": lambda x, i: x.sum(dim=1),
    "softmax": lambda x, i: x.softmax(-1),
    "layer norm": lambda x, i: torch.nn.functional.layer_norm(x, (8,)),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put_((i,), x[:3].clone()),
    "where": lambda x, i: torch.where(x > 0, x, -x),
    "topk": lambda x, i: x.topk(3),
    "sort": lambda x, i: x.sort(),
    "cat": lambda x, i: torch.cat([x, x]),
    "cast": lambda x, i: x.to(torch.bfloat16),
    "clone": lambda x, i: x.clone(),
    "fill": lambda x, i: x.fill_(3),
    "zeros": lambda x, i: torch.zeros(8, 8, device="anvil"),
    "arange": lambda x, i: torch.arange(8, device="anvil"),
    "normal": lambda x, i: x.normal_(),
    "foreach": lambda x, i: torch._foreach_add([x, x.clone()], 1.0),
    "host copy": lambda x, i: x.copy_(torch.ones(8, 8)),
    "pinned": lambda x, i: x.copy_(torch.ones(8, 8).pin_memory(), non_blocking=True),
}


@pytest.mark.parametrize("name", QUEUED)
def test_call_is_queued_and_right(name: str) -> None:
    def arguments(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, 8, generator=generator)
        return x.to(device), torch.tensor([2, 0, 5]).to(device)

    call = QUEUED[name]
    with torch.inference_mode():
        call(*arguments("anvil"))  # learns what such a call gives
        x, index = arguments("anvil")
        stream = busy()
        result = call(x, index)
        assert not stream.query(), "the call waited"
        if name in ("normal", "pinned", "host copy", "zeros", "arange"):
            torch.anvil.synchronize()
            return
        expected = call(*arguments("cpu"))
    if isinstance(result, torch.Tensor):
        result, expected = (result,), (expected,)
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 5), (7, 2), (4, 4, 4)])
def test_new_shapes_of_structured_ops_are_queued_at_once(shape: tuple[int, ...]) -> None:
    x = torch.rand(*shape, device="anvil")
    stream = busy()
    result = (x * 2 + 1).softmax(-1)
    assert not stream.query()
    torch.testing.assert_close(result.cpu(), (x.cpu() * 2 + 1).softmax(-1), rtol=0, atol=0)


WAITS = {
    "item": lambda x: x.sum().item(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "to cpu": lambda x: x.cpu(),
    "bool": lambda x: bool((x > 0).all()),
    "equal": lambda x: torch.equal(x, x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.cpu().numpy(),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_needs_values_waits_for_them(name: str) -> None:
    x = torch.zeros(4, 4, device="anvil")
    busy()
    x.add_(torch.eye(4, device="anvil"))
    ours = WAITS[name](x)
    theirs = WAITS[name](torch.eye(4))
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours.cpu(), theirs)
    else:
        assert str(ours) == str(theirs)


def test_wrong_shapes_raise_at_the_call() -> None:
    x, y = torch.ones(3, device="anvil"), torch.ones(4, device="anvil")
    busy()
    with pytest.raises(RuntimeError, match="must match the size"):
        x + y
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        x[None] @ y[None]
    with pytest.raises(RuntimeError):
        x.copy_(y)


def test_errors_that_depend_on_values_come_with_the_next_wait() -> None:
    table, bad = torch.rand(4, 2, device="anvil"), torch.tensor([9], device="anvil")
    good = torch.tensor([1], device="anvil")
    torch.index_select(table, 0, good)  # learn
    busy()
    torch.index_select(table, 0, bad)
    after = torch.index_select(table, 0, good)
    with pytest.raises(IndexError, match="index_select") as caught:
        torch.anvil.synchronize()
    assert "ANVIL_LAUNCH_BLOCKING" in str(caught.value)
    torch.anvil.synchronize()  # reported once
    assert torch.equal(after.cpu(), table.cpu()[1:2])  # later commands still ran
    torch.index_select(table, 0, bad)
    with pytest.raises(IndexError):
        after.cpu()


def test_pageable_sources_may_be_reused_at_once() -> None:
    for size in (8, 3_000_000):
        source, x = torch.ones(size), torch.empty(size, device="anvil")
        stream = busy()
        x.copy_(source, non_blocking=True)
        source.fill_(7)
        assert not stream.query()
        assert x.sum().item() == size
    busy()
    scalar = torch.tensor(2.0)
    y = torch.ones(3, device="anvil") * scalar
    scalar.fill_(50)
    assert y.tolist() == [2, 2, 2]


def test_pinned_copies_are_read_and_written_in_order() -> None:
    side = torch.anvil.Stream()
    x = torch.arange(1000, device="anvil")
    host = torch.zeros(1000, dtype=torch.int64).pin_memory()
    busy()
    x.mul_(3)
    side.wait_stream(torch.anvil.current_stream())
    with torch.anvil.stream(side):
        started = time.perf_counter()
        host.copy_(x, non_blocking=True)
        done = side.record_event()
    assert time.perf_counter() - started < LONG_MS / 1000 / 2
    assert not done.query() and host.sum() == 0
    x.record_stream(side)
    del x
    done.synchronize()
    assert torch.equal(host, torch.arange(1000) * 3)


def test_pinned_memory_that_is_freed_waits_for_its_copies() -> None:
    x = torch.empty(4096, device="anvil")
    source = torch.full((4096,), 5.0).pin_memory()
    busy()
    x.copy_(source, non_blocking=True)
    address = source.data_ptr()
    del source
    other = torch.zeros(4096).pin_memory()
    assert other.data_ptr() != address
    assert x.sum().item() == 5 * 4096


def test_memory_used_on_another_stream_is_not_handed_out_before() -> None:
    side = torch.anvil.Stream()
    x = torch.ones(100_000, device="anvil")
    torch.anvil.synchronize()
    busy(side)
    with torch.anvil.stream(side):
        y = x + 1
    del x  # its own stream is idle, side still has to read it
    junk = [torch.full((100_000,), -1.0, device="anvil") for _ in range(8)]
    side.synchronize()
    assert y.sum().item() == 200_000 and len(junk) == 8


def test_freed_memory_is_handed_out_in_stream_order() -> None:
    x = torch.ones(1_000_000, device="anvil")
    busy()
    y = x + 1
    address = x.data_ptr()
    del x
    z = torch.empty(1_000_000, device="anvil")
    assert z.data_ptr() == address  # at once, though `y` has not been computed yet
    z.fill_(9)
    assert y.sum().item() == 2_000_000


def test_resizing_keeps_what_is_still_being_computed() -> None:
    x = torch.zeros(4, device="anvil")
    busy()
    x.add_(2)
    x.resize_(400_000)
    assert x[:4].tolist() == [2, 2, 2, 2]
    base = torch.arange(6.0, device="anvil")
    view = base.view(2, 3)
    busy()
    total = view.sum(1)
    view.transpose_(0, 1)  # the queued sum saw the view as it was
    assert total.tolist() == [3, 12]


def test_events_and_streams_order_work() -> None:
    a, b = torch.anvil.Stream(), torch.anvil.Stream()
    x = torch.zeros(1000, device="anvil")
    torch.anvil.synchronize()
    busy(a)
    with torch.anvil.stream(a):
        x.fill_(3)
        filled = a.record_event()
    with torch.anvil.stream(b):
        b.wait_event(filled)
        y = x * 2
    assert not filled.query()
    b.synchronize()
    assert filled.query() and y.sum().item() == 6000


def test_urgent_streams_go_first() -> None:
    order = torch.zeros(2, device="anvil")
    count = torch.zeros(1, device="anvil")
    slow, urgent = torch.anvil.Stream(), torch.anvil.Stream(priority=-1)
    gate = busy().record_event()

    for position, stream in enumerate((slow, urgent)):
        with torch.anvil.stream(stream):
            stream.wait_event(gate)
            count.add_(1)
            order[position : position + 1].copy_(count)
    torch.anvil.synchronize()
    assert order.tolist() == [2, 1]


def test_elapsed_time_is_the_device_s() -> None:
    start, end = torch.anvil.Event(enable_timing=True), torch.anvil.Event(enable_timing=True)
    start.record()
    torch.anvil._sleep(60)
    end.record()
    with pytest.raises(RuntimeError, match="(?i)not"):
        start.elapsed_time(end)
    end.synchronize()
    assert 55 < start.elapsed_time(end) < 60_000


def test_waits_release_the_gil() -> None:
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    waits = (
        torch.anvil.synchronize,
        lambda: torch.anvil.current_stream().synchronize(),
        lambda: torch.ones(1, device="anvil").item(),
        lambda: torch.ones(1, device="anvil").cpu(),
        lambda: torch.anvil.host_alias(torch.ones(1, device="anvil")),
        lambda: torch.anvil.current_stream().record_event().synchronize(),
        torch.anvil.empty_cache,
        lambda: (torch.empty(1, device="anvil").normal_(), torch.anvil.manual_seed(1)),
    )
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for wait in waits:
            busy()
            before = len(ticks)
            wait()
            assert len(ticks) - before >= 3
    finally:
        stop.set()
        thread.join()


def test_random_numbers_come_in_the_order_of_the_calls() -> None:
    expected = torch.empty(4, 16)
    torch.manual_seed(3)
    for row in expected:
        row.normal_()
    x = torch.empty(4, 16, device="anvil")
    x.normal_()
    busy()
    torch.manual_seed(3)  # comes after what is queued, before what follows
    for row in x:
        row.normal_()
    state = torch.anvil.get_rng_state()
    again = torch.empty(16, device="anvil").normal_()
    torch.anvil.set_rng_state(state)
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(again.cpu(), torch.empty(16, device="anvil").normal_().cpu())


def test_default_dtype_is_the_caller_s() -> None:
    x = torch.arange(4, device="anvil")
    x / 3
    busy()
    narrow = x / 3
    torch.set_default_dtype(torch.float64)
    try:
        wide = x / 3
        torch.anvil.synchronize()
    finally:
        torch.set_default_dtype(torch.float32)
    assert narrow.dtype == torch.float32 and wide.dtype == torch.float64
    torch.testing.assert_close(narrow.cpu().double(), wide.cpu(), rtol=1e-6, atol=0)


def test_several_threads_may_use_one_stream() -> None:
    errors = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for round_ in range(40):
                rows = 3 + (seed + round_) % 5
                x = torch.rand(rows, 64, generator=generator)
                y = x.to("anvil")
                y = (y @ y.T).softmax(-1).sort().values  # scratch, first sights, waits
                z = (x @ x.T).softmax(-1).sort().values
                if not torch.equal(y.cpu(), z):
                    errors.append((seed, round_))
        except Exception as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
