# SPDX-License-Identifier: Apache-2.0
"""Checks of the backend "anvil" that every rank of a group runs, as a program of its own.

    process_group_checks.py RANK WORLD_SIZE RENDEZVOUS_FILE

prints one JSON object {check: traceback, or "" if it passed} on its last line. Every rank can make
every other rank's input, so each computes what it must receive.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import vllm_anvil.device as anvil

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SUMMED = [*FLOATS, *INTEGERS, torch.bool]
MOVED = [*SUMMED, torch.float8_e4m3fn, torch.complex64]
# Nothing, one element, around one cache line, one exchange, one chunk, and several.
SIZES = [0, 1, 31, 1000, 40_000, 300_001]
DEVICE = torch.device("anvil")

Tensor = torch.Tensor


class World:
    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def make(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The input of a rank, on the host."""
        generator = torch.Generator().manual_seed(1000 + rank)
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * 4
        return values.to(torch.int64).to(dtype) if dtype in INTEGERS else values.to(dtype)

    def all(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        return [self.make(rank, shape, dtype) for rank in range(self.size)]

    def mine(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.make(self.rank, shape, dtype).to(DEVICE)


class Spread:
    """A tensor whose elements lie apart, with marks in between that nobody may touch."""

    def __init__(self, values: Tensor) -> None:
        self.memory = torch.full((*values.shape, 3), 77).to(values.dtype).to(DEVICE)
        self.tensor = self.memory[..., 1]
        self.tensor.copy_(values)

    def expect(self, expected: Tensor) -> None:
        expect(self.tensor, expected)
        marks = self.memory.cpu()[..., ::2]
        expect(marks, torch.full(marks.shape, 77).to(marks.dtype))


def expect(actual: Tensor, expected: Tensor) -> None:
    """Equality to the bit."""
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    bits = [torch.empty(t.numel(), dtype=t.dtype) for t in (actual, expected)]
    for plain, tensor in zip(bits, (actual, expected), strict=True):
        plain.copy_(tensor.reshape(-1))
    assert torch.equal(bits[0].view(torch.uint8), bits[1].view(torch.uint8)), (actual, expected)


def reduced(tensors: list[Tensor], op: ReduceOp.RedOpType = ReduceOp.SUM) -> Tensor:
    """In the order of the ranks; 16-bit floats in float32."""
    dtype = tensors[0].dtype
    total = tensors[0].float() if dtype in (torch.bfloat16, torch.float16) else tensors[0]
    for tensor in tensors[1:]:
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            total = total + tensor
        elif op == ReduceOp.PRODUCT:
            total = total * tensor
        else:
            combine = torch.minimum if op == ReduceOp.MIN else torch.maximum
            total = combine(total, tensor.to(total.dtype))
    if op == ReduceOp.AVG:
        mode = None if total.dtype.is_floating_point else "trunc"
        total = torch.div(total, len(tensors), rounding_mode=mode)
    return total.to(dtype)


def all_reduce(world: World) -> None:
    for dtype in SUMMED:
        for size in SIZES:
            tensor = world.mine((size,), dtype)
            dist.all_reduce(tensor)
            expect(tensor, reduced(world.all((size,), dtype)))
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG):
            if op == ReduceOp.AVG and dtype == torch.bool:
                continue
            tensor = world.mine((257,), dtype)
            dist.all_reduce(tensor, op)
            expect(tensor, reduced(world.all((257,), dtype), op))
        spread = Spread(world.make(world.rank, (7, 300), dtype))
        dist.all_reduce(spread.tensor)
        spread.expect(reduced(world.all((7, 300), dtype)))


def all_reduce_large(world: World) -> None:
    for dtype, size in ((torch.float32, 16 << 20), (torch.bfloat16, (8 << 20) + 13)):
        tensor = world.mine((size,), dtype)
        dist.all_reduce(tensor)
        expect(tensor, reduced(world.all((size,), dtype)))


def reduce(world: World) -> None:
    for root in range(world.size):
        tensor = world.mine((5000,), torch.float32)
        dist.reduce(tensor, root)
        everyones = world.all((5000,), torch.float32)
        expect(tensor, reduced(everyones) if world.rank == root else everyones[world.rank])


def all_gather(world: World) -> None:
    for dtype in MOVED:
        for size in SIZES:
            outputs = [torch.empty(size, dtype=dtype, device=DEVICE) for _ in range(world.size)]
            dist.all_gather(outputs, world.mine((size,), dtype))
            whole = torch.empty(size * world.size, dtype=dtype, device=DEVICE)
            dist.all_gather_into_tensor(whole, world.mine((size,), dtype))
            for rank, expected in enumerate(world.all((size,), dtype)):
                expect(outputs[rank], expected)
                expect(whole[rank * size : (rank + 1) * size], expected)
        spread = [Spread(torch.zeros((3, 50)).to(dtype)) for _ in range(world.size)]
        source = Spread(world.make(world.rank, (3, 50), dtype))
        dist.all_gather([each.tensor for each in spread], source.tensor)
        source.expect(world.make(world.rank, (3, 50), dtype))
        for each, expected in zip(spread, world.all((3, 50), dtype), strict=True):
            each.expect(expected)


def all_gather_of_uneven_sizes(world: World) -> None:
    sizes = [0 if rank == 1 else 30_000 * rank + 7 for rank in range(world.size)]
    outputs = [torch.empty(size, device=DEVICE) for size in sizes]
    dist.all_gather(outputs, world.mine((sizes[world.rank],), torch.float32))
    for rank, output in enumerate(outputs):
        expect(output, world.make(rank, (sizes[rank],), torch.float32))


def reduce_scatter(world: World) -> None:
    for dtype in SUMMED:
        for size in SIZES:
            shape = (world.size, size)
            total = reduced(world.all(shape, dtype))[world.rank]
            output = torch.empty(size, dtype=dtype, device=DEVICE)
            dist.reduce_scatter(output, list(world.mine(shape, dtype)))
            expect(output, total)
            output.zero_()
            dist.reduce_scatter_tensor(output, world.mine(shape, dtype).view(-1))
            expect(output, total)
        spread = Spread(torch.zeros((4, 25)).to(dtype))
        dist.reduce_scatter_tensor(spread.tensor, world.mine((world.size, 4, 25), dtype))
        spread.expect(reduced(world.all((world.size, 4, 25), dtype))[world.rank])


def broadcast(world: World) -> None:
    for dtype in MOVED:
        for root in range(world.size):
            for size in SIZES:
                tensor = world.mine((size,), dtype)
                dist.broadcast(tensor, root)
                expect(tensor, world.make(root, (size,), dtype))
            spread = Spread(world.make(world.rank, (3, 50), dtype))
            dist.broadcast(spread.tensor, root)
            spread.expect(world.make(root, (3, 50), dtype))


def gather_and_scatter(world: World) -> None:
    for dtype in MOVED:
        for root in range(world.size):
            for size in (0, 5, 300_001):
                outputs = [torch.empty(size, dtype=dtype, device=DEVICE) for _ in range(world.size)]
                at_root = world.rank == root
                dist.gather(world.mine((size,), dtype), outputs if at_root else None, root)
                everyones = world.all((size,), dtype)
                for output, expected in zip(outputs if at_root else [], everyones, strict=False):
                    expect(output, expected)
                received = torch.empty(size, dtype=dtype, device=DEVICE)
                parts = [world.make(9 + rank, (size,), dtype) for rank in range(world.size)]
                inputs = [part.to(DEVICE) for part in parts] if at_root else None
                dist.scatter(received, inputs, root)
                expect(received, parts[world.rank])


def all_to_all(world: World) -> None:
    for dtype in MOVED:
        for size in SIZES:
            mine = world.mine((world.size, size), dtype)
            everyones = world.all((world.size, size), dtype)
            outputs = [torch.empty(size, dtype=dtype, device=DEVICE) for _ in range(world.size)]
            dist.all_to_all(outputs, list(mine))
            whole = torch.empty_like(mine)
            dist.all_to_all_single(whole, mine)
            for rank, theirs in enumerate(everyones):
                expect(outputs[rank], theirs[world.rank])
                expect(whole[rank], theirs[world.rank])
    # Rank f sends f + 2 t rows to rank t.
    rows = [[sender + 2 * to for to in range(world.size)] for sender in range(world.size)]
    inputs = [world.make(rank, (sum(rows[rank]), 3), torch.float32) for rank in range(world.size)]
    received = [rows[sender][world.rank] for sender in range(world.size)]
    output = torch.empty((sum(received), 3), device=DEVICE)
    dist.all_to_all_single(output, inputs[world.rank].to(DEVICE), received, rows[world.rank])
    parts = [inputs[s].split(rows[s])[world.rank] for s in range(world.size)]
    expect(output, torch.cat(parts))


def send_and_recv(world: World) -> None:
    following, last = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for dtype in MOVED:
        for size in SIZES:
            received = torch.empty(size, dtype=dtype, device=DEVICE)
            source = world.mine((size,), dtype)
            if world.rank == 0:
                dist.send(source, following)
            dist.recv(received, last)
            if world.rank != 0:
                dist.send(source, following)
            expect(received, world.make(last, (size,), dtype))


def batches(world: World) -> None:
    peers = [rank for rank in range(world.size) if rank != world.rank]
    for size in (0, 10, 300_001):
        received = {peer: Spread(torch.zeros(size)) for peer in peers}
        source = world.mine((size,), torch.float32)
        ops = [dist.P2POp(dist.isend, source, peer) for peer in peers]
        ops += [dist.P2POp(dist.irecv, received[peer].tensor, peer) for peer in peers]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for peer in peers:
            received[peer].expect(world.make(peer, (size,), torch.float32))


def coalesced(world: World) -> None:
    shapes = [(3,), (0,), (5000,), (2, 9)]
    tensors = [world.mine(shape, torch.float32) for shape in shapes]
    dist.all_reduce_coalesced(tensors)
    for tensor, shape in zip(tensors, shapes, strict=True):
        expect(tensor, reduced(world.all(shape, torch.float32)))
    inputs = [world.mine(shape, torch.bfloat16) for shape in shapes]
    outputs = [
        torch.empty((world.size, *shape), dtype=torch.bfloat16, device=DEVICE) for shape in shapes
    ]
    with dist._coalescing_manager():
        for output, source in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output.view(-1), source.view(-1))
    for output, shape in zip(outputs, shapes, strict=True):
        expect(output, torch.stack(world.all(shape, torch.bfloat16)))
    shares = [torch.empty(shape, device=DEVICE) for shape in shapes]
    wholes = [world.mine((world.size, *shape), torch.float32) for shape in shapes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for share, whole in zip(shares, wholes, strict=True):
            dist.reduce_scatter_tensor(share.view(-1), whole.view(-1))
    manager.wait()
    for share, shape in zip(shares, shapes, strict=True):
        expect(share, reduced(world.all((world.size, *shape), torch.float32))[world.rank])
    with dist._coalescing_manager(device=DEVICE):
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def works(world: World) -> None:
    tensor = world.mine((1000,), torch.float32)
    side = torch.anvil.Stream()
    side.wait_stream(torch.anvil.current_stream())
    with torch.anvil.stream(side):
        anvil._C.sleep(0, 50_000)
        work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed() or os.environ.get("ANVIL_LAUNCH_BLOCKING") == "1"
    # The current stream waits, not this thread.
    work.wait()
    result = tensor + 0
    expect(result, reduced(world.all((1000,), torch.float32)))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    future = dist.all_reduce(tensor, async_op=True).get_future()
    future.wait()
    torch.anvil.synchronize()


def in_the_order_of_the_stream(world: World) -> None:
    values = torch.zeros(5000, device=DEVICE)
    for step in range(50):
        values.add_(world.rank + step)
        dist.all_reduce(values, ReduceOp.MAX)
        values.mul_(0.5)
    expected = torch.zeros(5000)
    for step in range(50):
        expected = (expected + world.size - 1 + step) * 0.5
    expect(values, expected)


def barriers_and_objects(world: World) -> None:
    dist.barrier(device_ids=[0])
    objects: list[object] = [None] * world.size
    dist.all_gather_object(objects, {"rank": world.rank})
    assert objects == [{"rank": rank} for rank in range(world.size)]
    message = [f"from {world.rank}"]
    dist.broadcast_object_list(message, 1)
    assert message == ["from 1"]
    group = dist.new_group(list(range(1, world.size)))
    if world.rank > 0:
        tensor = torch.ones(3, device=DEVICE)
        dist.all_reduce(tensor, group=group)
        expect(tensor, torch.full((3,), float(world.size - 1)))


def graphs(world: World) -> None:
    """Each collective, captured and replayed with new inputs."""
    size = world.size
    following, last = (world.rank + 1) % size, (world.rank - 1) % size

    def exchange(source: Tensor) -> Tensor:
        result = torch.empty_like(source)
        ops = [dist.P2POp(dist.isend, source, following), dist.P2POp(dist.irecv, result, last)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return result

    def in_place(call: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
        def run(source: Tensor) -> Tensor:
            result = source.clone()
            call(result)
            return result

        return run

    def into(
        shape: tuple[int, ...], call: Callable[[Tensor, Tensor], object]
    ) -> Callable[[Tensor], Tensor]:
        def run(source: Tensor) -> Tensor:
            result = torch.empty(shape, device=DEVICE)
            call(result, source)
            return result

        return run

    rows, columns = size * 2, 5000
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "all_reduce": in_place(dist.all_reduce),
        "strided": in_place(lambda x: dist.all_reduce(x[:, ::2])),
        "reduce": in_place(lambda x: dist.reduce(x, 1)),
        "broadcast": in_place(lambda x: dist.broadcast(x, 1)),
        "all_gather": into((rows * size, columns), dist.all_gather_into_tensor),
        "reduce_scatter": into((2, columns), dist.reduce_scatter_tensor),
        "all_to_all": into((rows, columns), dist.all_to_all_single),
        "gather": into(
            (size, rows, columns),
            lambda out, x: dist.gather(x, list(out) if world.rank == 0 else None, 0),
        ),
        "scatter": into(
            (2, columns),
            lambda out, x: dist.scatter(out, list(x.split(2)) if world.rank == 0 else None, 0),
        ),
        "exchange": exchange,
    }
    for name, call in calls.items():
        source = torch.zeros(rows, columns, device=DEVICE)
        graph = torch.anvil.Graph()
        with torch.anvil.graph(graph):
            result = call(source * 2 + 1)
        for step in range(3):
            source.copy_(world.make(world.rank + 10 * step, (rows, columns), torch.float32))
            graph.replay()
            if name != "gather" or world.rank == 0:
                expect(result, call(source * 2 + 1).cpu())
            else:
                call(source * 2 + 1)


def wrong_arguments(world: World) -> None:
    tensor = torch.zeros(world.size + 1, device=DEVICE)
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: dist.all_reduce(tensor.to(torch.float8_e5m2)), Exception, "cannot reduce|Float8"),
        (lambda: dist.all_reduce(tensor.int(), ReduceOp.BAND), ValueError, "SUM, AVG, PRODUCT"),
        (lambda: dist.all_reduce(tensor.bool(), ReduceOp.AVG), TypeError, "no average of bool"),
        (lambda: dist.all_to_all_single(tensor, tensor.clone()), ValueError, "shared equally"),
        (
            lambda: dist.all_gather_into_tensor(tensor, tensor),
            ValueError,
            "elements are not those of",
        ),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
    # All of that was refused before anything was exchanged.
    dist.all_reduce(tensor)


CHECKS = [
    all_reduce,
    all_reduce_large,
    reduce,
    all_gather,
    all_gather_of_uneven_sizes,
    reduce_scatter,
    broadcast,
    gather_and_scatter,
    all_to_all,
    send_and_recv,
    batches,
    coalesced,
    works,
    in_the_order_of_the_stream,
    barriers_and_objects,
    graphs,
    wrong_arguments,
]


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "anvil", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size
    )
    results = {check.__name__: "not run" for check in CHECKS}
    world = World()
    for check in CHECKS:
        try:
            check(world)
            torch.anvil.synchronize()
            results[check.__name__] = ""
        except BaseException:
            results[check.__name__] = traceback.format_exc()
            # The ranks may no longer be at the same message.
            break
    print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
