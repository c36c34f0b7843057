# SPDX-License-Identifier: Apache-2.0
"""Recorded graphs: what a capture records, what a replay does, and what cannot be captured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vllm_anvil.device  # noqa: F401

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture
def inference():
    with torch.inference_mode():
        yield


def capture(function, *arguments, pool=None):
    """Runs once (so that the device learns the calls), captures, gives (graph, result)."""
    function(*arguments)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph, pool=pool):
        result = function(*arguments)
    return graph, result


def block(x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A bit of everything that a layer does: gathers, products, softmax, in-place and views."""
    hidden = torch.nn.functional.embedding(x, table)
    mixed = torch.nn.functional.silu(hidden @ weight)
    scores = (mixed @ hidden.transpose(0, 1)).softmax(-1)
    out = torch.cat([scores @ mixed, hidden], dim=-1)
    out[:, 1:].mul_(0.5)
    return out.view(-1, 2, out.shape[-1] // 2).sum(1)


def inputs(device: str = "anvil") -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(16, 16, generator=generator)
    table = torch.rand(50, 16, generator=generator)
    return torch.tensor([3, 1, 4, 1, 5]).to(device), weight.to(device), table.to(device)


def test_replay_equals_eager_for_new_inputs() -> None:
    x, weight, table = inputs()
    graph, result = capture(block, x, weight, table)
    for step in range(20):
        x.copy_(torch.randint(0, 50, (5,)))
        graph.replay()
        assert torch.equal(result, block(x, weight, table)), step


def test_capture_has_no_side_effects() -> None:
    x = torch.ones(4, device="anvil")
    state = torch.anvil.get_rng_state()
    graph = torch.anvil.Graph()
    x.add_(1), x.normal_()
    x.fill_(1)
    torch.anvil.set_rng_state(state)
    with torch.anvil.graph(graph):
        assert torch.anvil.is_current_stream_capturing()
        x.add_(1)
        noise = torch.empty(8, device="anvil").normal_()
    assert not torch.anvil.is_current_stream_capturing()
    assert x.tolist() == [1] * 4
    assert torch.equal(state, torch.anvil.get_rng_state())
    graph.replay()
    assert x.tolist() == [2] * 4 and noise.abs().sum() > 0


def test_random_ops_go_on_with_the_generator() -> None:
    generator = torch.Generator("anvil")
    x = torch.empty(1000, device="anvil")

    def draw() -> None:
        x.normal_(generator=generator)
        x.add_(torch.empty_like(x).uniform_(generator=generator))

    graph, _ = capture(draw)
    generator.manual_seed(5)
    eager = []
    for _ in range(3):
        draw()
        eager.append(x.clone())
    generator.manual_seed(5)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(x.clone())
    for ours, theirs in zip(replayed, eager, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(replayed[0], replayed[1])


def test_ten_thousand_replays_allocate_nothing_and_run_no_python() -> None:
    x, weight, table = inputs()
    graph, result = capture(block, x, weight, table)
    expected = block(x, weight, table).clone()
    graph.replay()
    torch.anvil.synchronize()
    frames = []
    before = torch.anvil.memory_stats()

    def watch(frame, event, argument):
        frames.append(frame.f_code.co_name)

    names = ("allocation.all.allocated", "segment.all.allocated", "reserved_bytes.all.peak")
    replay = graph.replay
    sys.setprofile(watch)
    for _ in range(10_000):
        replay()
    sys.setprofile(None)
    torch.anvil.synchronize()
    after = torch.anvil.memory_stats()
    assert {name: before[name] for name in names} == {name: after[name] for name in names}
    # The calls of replay itself (a C function) are all there is.
    assert set(frames) <= {"test_ten_thousand_replays_allocate_nothing_and_run_no_python"}
    assert torch.equal(result, expected)


def test_graphs_of_a_pool_share_one_arena() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(256, 256, generator=generator).to("anvil") for _ in range(8)]

    def step(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.nn.functional.silu(x @ weight) + x
        return x[:, :8].clone()

    def arena(sizes: list[int]) -> int:
        pool = torch.anvil.graph_pool_handle()
        inputs = [torch.rand(n, 256, device="anvil") for n in sizes]
        graphs = [capture(step, x, pool=pool) for x in inputs]
        for graph, result in graphs:
            graph.replay()
            assert result.isfinite().all()
        return graphs[0][0].pool_bytes()[1]

    largest = arena([512])
    assert largest > 4 << 20 or largest > 512 * 256 * 4 * 2
    for sizes in ([512, 256, 128, 64, 8, 1], [1, 8, 64, 128, 256, 512]):
        assert arena(sizes) <= 1.2 * largest


def test_arena_memory_goes_back_to_the_system() -> None:
    x = torch.rand(1024, 1024, device="anvil")
    torch.anvil.empty_cache()
    before = torch.anvil.memory_reserved()
    graph, result = capture(lambda: (x @ x).relu())
    graph.replay()
    assert torch.anvil.memory_reserved() >= before + result.nbytes
    torch.anvil.synchronize()
    del result
    graph.reset()
    torch.anvil.empty_cache()
    assert torch.anvil.memory_reserved() <= before


HOST = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "bool": lambda x: bool(x.sum() > 0),
    "pageable": lambda x: x.copy_(torch.ones(4)),
    "from list": lambda x: torch.tensor([1.0, 2.0], device="anvil"),
    "synchronize": lambda x: torch.anvil.synchronize(),
    "stream": lambda x: torch.anvil.current_stream().synchronize(),
    "seed": lambda x: (x.normal_(), torch.anvil.manual_seed(1)),
}


@pytest.mark.parametrize("name", HOST)
def test_what_needs_the_host_is_an_error_at_its_line(name: str) -> None:
    x = torch.ones(4, device="anvil")
    graph = torch.anvil.Graph()
    with pytest.raises(RuntimeError) as caught, torch.anvil.graph(graph):
        HOST[name](x)
    assert "captur" in str(caught.value)
    if name in ("item", "nonzero"):
        assert re.search("aten::(item|_local_scalar_dense|nonzero)", str(caught.value))
    lines = [entry.lineno for entry in caught.traceback if entry.path == Path(__file__)]
    assert HOST[name].__code__.co_firstlineno - 1 in lines
    # The device is as before, and the next capture works.
    again, result = capture(lambda: x + 1)
    again.replay()
    assert result.tolist() == [2] * 4


def test_capture_without_warm_up() -> None:
    x = torch.rand(3, 7, device="anvil")
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        y = (x * 3).cumsum(1).softmax(0)
    graph.replay()
    assert torch.equal(y.cpu(), (x.cpu() * 3).cumsum(1).softmax(0))


def test_pinned_copies_are_captured_both_ways() -> None:
    source = torch.zeros(16).pin_memory()
    target = torch.zeros(16).pin_memory()
    x = torch.zeros(16, device="anvil")

    def step() -> None:
        x.copy_(source, non_blocking=True)
        x.mul_(2)
        target.copy_(x, non_blocking=True)

    graph, _ = capture(step)
    for value in (1.0, 5.0):
        source.fill_(value)
        graph.replay()
        torch.anvil.synchronize()
        assert target.tolist() == [2 * value] * 16


def test_other_streams_join_by_events() -> None:
    x = torch.ones(32, device="anvil")
    side = torch.anvil.Stream()

    def step() -> torch.Tensor:
        main = torch.anvil.current_stream()
        y = x + 1
        side.wait_stream(main)
        with torch.anvil.stream(side):
            z = y * 2
        main.wait_stream(side)
        return z - x

    graph, result = capture(step)
    x.fill_(10)
    graph.replay()
    assert result.tolist() == [12] * 32
    streams = {node.stream for node in graph.nodes()}
    assert side.stream_id in streams and len(streams) == 2


def test_work_of_other_streams_runs_during_a_capture() -> None:
    x, other = torch.ones(4, device="anvil"), torch.anvil.Stream()
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        y = x + 1
        with torch.anvil.stream(other):
            z = x * 5
            assert z.tolist() == [5] * 4
    graph.replay()
    assert y.tolist() == [2] * 4


def test_native_ops_read_slots_at_each_replay() -> None:
    key = torch.arange(6.0, device="anvil").view(3, 1, 2)
    slots = torch.tensor([0, 3, 1], device="anvil")
    caches = torch.zeros(2, 2, 2, 1, 2, device="anvil").unbind()

    def step() -> None:
        torch.ops.anvil.write_kv_cache(key, key, *caches, slots)

    graph, _ = capture(step)
    for case in ([2, 1, -1], [0, -1, 3]):
        slots.copy_(torch.tensor(case))
        for cache in caches:
            cache.zero_()
        graph.replay()
        replayed = [cache.tolist() for cache in caches]
        for cache in caches:
            cache.zero_()
        step()
        assert replayed == [cache.tolist() for cache in caches]
        assert replayed[0] != torch.zeros_like(caches[0]).tolist()


def test_errors_in_a_replay_name_the_op() -> None:
    table = torch.rand(4, 2, device="anvil")
    index = torch.tensor([1], device="anvil")
    graph, result = capture(lambda: torch.index_select(table, 0, index))
    index.fill_(77)
    graph.replay()
    with pytest.raises(IndexError, match="index_select"):
        torch.anvil.synchronize()
    index.fill_(2)
    graph.replay()
    assert torch.equal(result, table[2:3])


def test_memory_freed_since_the_capture_is_noticed() -> None:
    held = [torch.ones(1000, device="anvil")]
    graph, _ = capture(lambda: held[0] + 1)
    held.clear()
    with pytest.raises(RuntimeError, match="freed"):
        graph.replay()


def test_nodes_are_listed_and_timed(tmp_path: Path) -> None:
    x, weight, table = inputs()
    graph, _ = capture(block, x, weight, table)
    names = [node.name for node in graph.nodes()]
    assert "aten::embedding" in names and "aten::mm" in names and len(names) >= 9
    assert all(node.runs == 0 for node in graph.nodes())
    graph.enable_debug_mode()
    for _ in range(3):
        graph.replay()
    torch.anvil.synchronize()
    for node in graph.nodes():
        assert node.runs == 3 and node.mean_us > 0 and node.last_us > 0
    graph.debug_dump(tmp_path / "graph.dot")
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph") and "aten::mm" in text
    with pytest.raises(RuntimeError, match="Cannot write"):
        graph.debug_dump(tmp_path / "missing" / "graph.dot")


def test_misuse_is_refused_in_words() -> None:
    graph = torch.anvil.Graph()
    with pytest.raises(RuntimeError, match="not been captured"):
        graph.replay()
    with pytest.raises(RuntimeError, match="not being captured"):
        graph.capture_end()
    with torch.anvil.graph(graph), pytest.raises(RuntimeError, match="captured already"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="reset"):
        graph.capture_begin()
    with pytest.raises(ValueError, match="capture_error_mode"):
        torch.anvil.Graph().capture_begin(capture_error_mode="strict")
    graph.reset()
    with torch.anvil.graph(graph):
        pass
    assert graph.nodes() == []
    graph.replay()


def test_accelerator_graph_is_this_one() -> None:
    x = torch.ones(4, device="anvil")
    graph = torch.accelerator.Graph()
    with torch.anvil.Stream(), graph:
        x += 1
    assert x.tolist() == [1] * 4
    graph.replay()
    assert x.tolist() == [2] * 4
    assert graph.pool() != (0, 0)


def test_kernel_scratch_is_placed_too() -> None:
    """Ops whose CPU kernels allocate besides their result do so from the arena."""
    x = torch.rand(64, 64, device="anvil")

    def step() -> torch.Tensor:
        values, order = x.sort(dim=1)
        return torch.cumsum(values, 1).topk(5).values + order[:, :5] + x.std(1, keepdim=True)

    step()
    torch.anvil.synchronize()
    graph, result = capture(step)
    torch.anvil.synchronize()
    before = torch.anvil.memory_stats()["allocation.all.allocated"]
    for _ in range(50):
        graph.replay()
    torch.anvil.synchronize()
    assert torch.anvil.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(result, step())


def test_captures_refuse_the_host_with_blocking_launches_too() -> None:
    body = """
import torch, vllm_anvil.device
x = torch.ones(4, device="anvil")
graph = torch.anvil.Graph()
try:
    with torch.anvil.graph(graph):
        x.sum().item()
except RuntimeError as error:
    assert "captured" in str(error), error
else:
    raise AssertionError("a value was read inside a capture")
"""
    done = subprocess.run(
        [sys.executable, "-c", body],
        env=os.environ | {"ANVIL_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
