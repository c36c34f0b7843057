# SPDX-License-Identifier: Apache-2.0
"""Checks of the communicator that every rank of a group runs, as a program of its own.

    collective_checks.py RANK WORLD_SIZE RENDEZVOUS_FILE DEVICE[:group]...

":group" gives the communicator a device group with the backend "anvil". The last line printed is
one JSON object {check: traceback, or "" if it passed}. Every rank can make
every other rank's input, so each computes what it must receive.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import GroupCoordinator

from anvil_communicator.communicator import AnvilCommunicator

SUMMED = [torch.bfloat16, torch.float16, torch.float32, torch.int64]
MOVED = [*SUMMED, torch.bool, torch.int16, torch.float8_e4m3fn]
# Small enough for one exchange, and large enough for two; neither a multiple of the ranks.
SUM_SHAPES = [(3, 5), (1,), (), (0, 4), (257, 311)]


class Ranks:
    """A group, its communicator, and the inputs of its ranks."""

    def __init__(self, ranks: list[int], device: torch.device, with_group: bool) -> None:
        self.cpu_group = dist.new_group(ranks, backend="gloo")
        device_group = None
        if with_group:
            device_group = dist.new_group(ranks, backend="cpu:gloo,anvil:anvil")
        self.has_device_group = with_group
        self.device = device
        self.is_member = dist.get_rank() in ranks
        if self.is_member:
            self.communicator = AnvilCommunicator(
                cpu_group=self.cpu_group,
                device=device,
                device_group=device_group,
                unique_name="tp:0",
            )
            assert (self.communicator._on_device is not None) == with_group
            self.rank = self.communicator.rank_in_group
            self.size = self.communicator.world_size
            assert [self.rank, self.size] == [ranks.index(dist.get_rank()), len(ranks)]

    def make(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The input of a rank, on the host."""
        generator = torch.Generator().manual_seed(1000 + rank)
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * 30
        return values.to(torch.int64).to(dtype) if not dtype.is_floating_point else values.to(dtype)

    def all(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        return [self.make(rank, shape, dtype) for rank in range(self.size)]

    def mine(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.make(self.rank, shape, dtype).to(self.device)

    def strided(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tensor as it is, and with the same values in three other memory layouts."""
        yield tensor
        if tensor.dim() < 2:
            return
        yield tensor.t().contiguous().t()
        wide = torch.zeros((tensor.shape[0], tensor.shape[1] * 2 + 1), dtype=tensor.dtype)
        strided = wide.to(tensor.device)[:, 1::2]
        strided.copy_(tensor)
        yield strided
        shifted = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype).to(tensor.device)[3:]
        yield shifted.view(tensor.shape).copy_(tensor)


def expect(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    """Equality to the bit."""
    assert actual.device.type == device.type, actual.device
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, actual.dtype
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    same = actual.contiguous().view(-1).view(torch.uint8) == expected.contiguous().view(-1).view(
        torch.uint8
    )
    assert bool(same.all()), (actual, expected)


def sum_in_order(tensors: list[torch.Tensor]) -> torch.Tensor:
    dtype = tensors[0].dtype
    total = tensors[0].float() if dtype in (torch.bfloat16, torch.float16) else tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total.to(dtype)


def uneven(ranks: Ranks) -> list[int]:
    """Different for each rank, and nothing for the second."""
    return [0 if rank == 1 else rank + 2 for rank in range(ranks.size)]


def all_reduce(ranks: Ranks) -> None:
    for dtype in SUMMED:
        for shape in SUM_SHAPES:
            expected = sum_in_order(ranks.all(shape, dtype))
            for tensor in ranks.strided(ranks.mine(shape, dtype)):
                result = ranks.communicator.all_reduce(tensor)
                expect(result, expected, ranks.device)
                expect(tensor, ranks.make(ranks.rank, shape, dtype), ranks.device)


def all_reduce_is_accurate(ranks: Ranks) -> None:
    for dtype, tolerance in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        shape = (4, 1000)
        exact = torch.stack([t.double() for t in ranks.all(shape, dtype)]).sum(0)
        result = ranks.communicator.all_reduce(ranks.mine(shape, dtype)).cpu().double()
        torch.testing.assert_close(result, exact, rtol=tolerance, atol=1e-4)


def all_reduce_does_not_depend_on_place_or_time(ranks: Ranks) -> None:
    whole = ranks.mine((90_001,), torch.float32)
    expected = ranks.communicator.all_reduce(whole)
    for start, stop in ((0, 1), (100, 1100), (89_999, 90_001)):
        part = ranks.communicator.all_reduce(whole[start:stop])
        expect(part, expected[start:stop].cpu(), ranks.device)
    for late in range(ranks.size):
        time.sleep(0.05 * (ranks.rank == late))
        expect(ranks.communicator.all_reduce(whole), expected.cpu(), ranks.device)


def all_gather(ranks: Ranks) -> None:
    for dtype in MOVED:
        for shape, dims in (((3, 5), (0, 1, -1, -2)), ((2, 3, 4), (0, 1, 2)), ((0, 2), (0, 1))):
            for dim in dims:
                expected = torch.cat(ranks.all(shape, dtype), dim)
                for tensor in (
                    ranks.strided(ranks.mine(shape, dtype))
                    if len(shape) == 2
                    else [ranks.mine(shape, dtype)]
                ):
                    expect(ranks.communicator.all_gather(tensor, dim), expected, ranks.device)


def all_gatherv(ranks: Ranks) -> None:
    sizes = uneven(ranks)
    for dtype in MOVED:
        for dim in (0, 1):
            shapes = [(size, 4) if dim == 0 else (4, size) for size in sizes]
            inputs = [ranks.make(rank, shape, dtype) for rank, shape in enumerate(shapes)]
            expected = torch.cat(inputs, dim)
            mine = inputs[ranks.rank].to(ranks.device)
            for tensor in ranks.strided(mine):
                expect(ranks.communicator.all_gatherv(tensor, dim, sizes), expected, ranks.device)
            first, second = ranks.communicator.all_gatherv([mine, mine], dim, sizes)
            expect(first, expected, ranks.device)
            expect(second, expected, ranks.device)
        without_sizes = ranks.communicator.all_gatherv(ranks.mine((2, 3), dtype))
        expect(without_sizes, torch.cat(ranks.all((2, 3), dtype)), ranks.device)


def reduce_scatter(ranks: Ranks) -> None:
    for dtype in SUMMED:
        for dim in (0, 1, -1):
            shape = (2 * ranks.size, 3 * ranks.size)
            total = sum_in_order(ranks.all(shape, dtype))
            expected = total.chunk(ranks.size, dim)[ranks.rank]
            for tensor in ranks.strided(ranks.mine(shape, dtype)):
                result = ranks.communicator.reduce_scatter(tensor, dim)
                assert result.is_contiguous()
                expect(result, expected, ranks.device)


def reduce_scatterv(ranks: Ranks) -> None:
    sizes = uneven(ranks)
    for dtype in SUMMED:
        for dim in (0, 1):
            shape = (sum(sizes), 4) if dim == 0 else (4, sum(sizes))
            expected = sum_in_order(ranks.all(shape, dtype)).split(sizes, dim)[ranks.rank]
            for tensor in ranks.strided(ranks.mine(shape, dtype)):
                expect(
                    ranks.communicator.reduce_scatterv(tensor, dim, sizes), expected, ranks.device
                )
            output = torch.empty(expected.shape, dtype=dtype, device=ranks.device)
            returned = ranks.communicator.reduce_scatterv_into_output(
                ranks.mine(shape, dtype), output, dim, sizes
            )
            assert returned is output
            expect(output, expected, ranks.device)


def gather(ranks: Ranks) -> None:
    for dtype in MOVED:
        for dst in range(ranks.size):
            for dim in (0, -1):
                expected = torch.cat(ranks.all((3, 5), dtype), dim)
                for tensor in ranks.strided(ranks.mine((3, 5), dtype)):
                    result = ranks.communicator.gather(tensor, dst, dim)
                    if ranks.rank == dst:
                        expect(result, expected, ranks.device)
                    else:
                        assert result is None


def broadcast(ranks: Ranks) -> None:
    for dtype in MOVED:
        for src in range(ranks.size):
            for shape in ((3, 5), (), (0,)):
                values = ranks.mine(shape, dtype)
                for tensor in ranks.strided(values.clone()):
                    tensor.copy_(values)
                    base = tensor._base if tensor._base is not None else tensor
                    before = base.cpu().clone()
                    assert ranks.communicator.broadcast(tensor, src) is tensor
                    expect(tensor, ranks.make(src, shape, dtype), ranks.device)
                    if base.numel() != tensor.numel():
                        # Only the view has changed.
                        tensor.copy_(values)
                        expect(base, before, ranks.device)


def send_and_recv(ranks: Ranks) -> None:
    last, following = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size
    for dtype in MOVED:
        shape = (3, 5)
        for peers in (True, False):
            for tensor in ranks.strided(ranks.mine(shape, dtype)):
                to, source = (following, last) if peers else (None, None)
                # The first of the ring sends first, or all would wait for one another.
                if ranks.rank == 0:
                    ranks.communicator.send(tensor, to)
                received = ranks.communicator.recv(torch.Size(shape), dtype, source)
                if ranks.rank != 0:
                    ranks.communicator.send(tensor, to)
                expect(received, ranks.make(last, shape, dtype), ranks.device)


def batch_isend_irecv(ranks: Ranks) -> None:
    group, communicator = ranks.cpu_group, ranks.communicator
    for dtype in MOVED:
        for layout in range(4):
            ops, received = [], []
            for peer in range(ranks.size):
                if peer == ranks.rank:
                    continue
                outgoing = list(ranks.strided(ranks.mine((4, 3), dtype)))[layout]
                incoming = list(ranks.strided(torch.zeros_like(outgoing)))[layout]
                where = communicator.ranks[peer]
                ops.append(dist.P2POp(dist.irecv, incoming, where, group))
                ops.append(dist.P2POp(dist.isend, outgoing, where, group))
                received.append((peer, incoming))
            communicator.batch_isend_irecv(ops)
            for peer, incoming in received:
                expect(incoming, ranks.make(peer, (4, 3), dtype), ranks.device)


def in_graphs(ranks: Ranks) -> None:
    """What a captured step calls, replayed with other values."""
    if not ranks.has_device_group:
        return
    communicator, size = ranks.communicator, ranks.size
    sizes = uneven(ranks)
    rows = sum(sizes)

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        mine = x[: sizes[ranks.rank]] + 1
        return [
            communicator.all_reduce(x * 2),
            communicator.all_gather(x, 1),
            communicator.all_gatherv(mine, 0, sizes),
            communicator.reduce_scatter(x.repeat(1, size), 1),
            communicator.reduce_scatterv(x, 0, sizes),
            communicator.broadcast(x.clone(), 1),
        ]

    x = torch.zeros(rows, 6, device=ranks.device)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        results = step(x)
    for round_ in range(3):
        x.copy_(ranks.make(ranks.rank + 10 * round_, (rows, 6), torch.float32))
        graph.replay()
        for result, expected in zip(results, step(x), strict=True):
            expect(result, expected.cpu(), ranks.device)


def wrong_arguments(ranks: Ranks) -> None:
    tensor = torch.zeros(ranks.size + 1, 2, device=ranks.device)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ranks.communicator.all_gather(tensor, 2), "dim 2 is out of range"),
        (lambda: ranks.communicator.all_gatherv(tensor, 0, [1]), "one per rank"),
        (lambda: ranks.communicator.reduce_scatter(tensor, 0), "cannot be shared equally"),
        (lambda: ranks.communicator.reduce_scatterv(tensor, 0, [7] * ranks.size), "that sum to"),
        (lambda: ranks.communicator.gather(tensor, 0, -3), "dim -3 is out of range"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


def a_destroyed_communicator_leaves_the_group(ranks: Ranks) -> None:
    other = AnvilCommunicator(cpu_group=ranks.cpu_group, device=ranks.device)
    other.destroy()
    other.destroy()
    dist.barrier(ranks.cpu_group)


def through_the_engines_group(ranks: Ranks) -> None:
    """What models call: the engine's coordinator, which makes the communicator itself."""
    members = ranks.communicator.ranks
    if ranks.device.type != "anvil" or len(members) != dist.get_world_size():
        # The platform makes groups of its own device, and all ranks must make them.
        return
    group = GroupCoordinator(
        group_ranks=[members],
        local_rank=0,
        torch_distributed_backend="cpu:gloo,anvil:anvil" if ranks.has_device_group else "gloo",
        use_device_communicator=True,
        group_name="tp",
    )
    assert type(group.device_communicator) is AnvilCommunicator
    inputs = ranks.all((ranks.size, 3), torch.bfloat16)
    mine = ranks.mine((ranks.size, 3), torch.bfloat16)
    total = sum_in_order(inputs)
    expect(group.all_reduce(mine), total, ranks.device)
    expect(group.all_gather(mine), torch.cat(inputs, -1), ranks.device)
    expect(group.reduce_scatter(mine, 0), total[ranks.rank : ranks.rank + 1], ranks.device)
    gathered = group.gather(mine, dst=1, dim=0)
    if ranks.rank == 1:
        expect(gathered, torch.cat(inputs), ranks.device)
    if ranks.rank == 0:
        group.send(mine, 1)
    elif ranks.rank == 1:
        expect(group.recv(mine.shape, mine.dtype, 0), inputs[0], ranks.device)
    group.destroy()


CHECKS = [
    all_reduce,
    all_reduce_is_accurate,
    all_reduce_does_not_depend_on_place_or_time,
    all_gather,
    all_gatherv,
    reduce_scatter,
    reduce_scatterv,
    gather,
    broadcast,
    send_and_recv,
    batch_isend_irecv,
    in_graphs,
    wrong_arguments,
    a_destroyed_communicator_leaves_the_group,
    through_the_engines_group,
]


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size
    )
    groups = {}
    for name in sys.argv[4:]:
        device, _, group = name.partition(":")
        arguments = (torch.device(device), group == "group")
        groups[f"{name}, all"] = Ranks(list(range(world_size)), *arguments)
        if world_size > 2:
            # Places in the group that are not the ranks of the world.
            groups[f"{name}, part"] = Ranks(list(range(1, world_size)), *arguments)
    results: dict[str, str] = {}
    for name, ranks in groups.items():
        if not ranks.is_member:
            continue
        results.update({f"{name}: {check.__name__}": "not run" for check in CHECKS})
        for check in CHECKS:
            try:
                check(ranks)
                results[f"{name}: {check.__name__}"] = ""
            except Exception:
                results[f"{name}: {check.__name__}"] = traceback.format_exc()
                # The ranks may no longer be at the same message.
                break
    print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
