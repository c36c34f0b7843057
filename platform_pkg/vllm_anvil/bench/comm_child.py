# SPDX-License-Identifier: Apache-2.0
"""One rank of `vllm-anvil bench comm`: `comm_child.py RANK RANKS RENDEZVOUS RESULT JOB`.

JOB: {"operations", "sizes", "dtype", "rounds", "seconds"}; RESULT, written by rank 0, a list of
{"operation", "size", "wrong": names of ways, "seconds": {way: one figure a round}}. Ways are anvil,
gloo, and copy: as many bytes as the operation moves at a rank, copied once on every rank at once.
All ranks begin each measurement together, and its figure is that of the slowest rank.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import vllm_anvil.device as anvil
from vllm_anvil.device.distributed import backend_of

Tensor = torch.Tensor
WAYS = ("anvil", "gloo", "copy")


class Operation:
    """One operation on messages of `size` bytes: what a rank gives or gets, whichever is more."""

    def __init__(self, name: str, size: int, dtype: torch.dtype, device: str) -> None:
        self.name, self.ranks, self.rank = name, dist.get_world_size(), dist.get_rank()
        share = max(1, size // dtype.itemsize // self.ranks)
        whole = share * self.ranks
        self.counts = {"all_gather": (share, whole), "reduce_scatter": (whole, share)}.get(
            name, (whole, whole)
        )
        self.inputs = [self._values(rank, dtype) for rank in range(self.ranks)]
        self.input = self.inputs[self.rank].to(device)
        self.output = torch.zeros(self.counts[1], dtype=dtype, device=device)

    def _values(self, rank: int, dtype: torch.dtype) -> Tensor:
        # Small whole numbers: every sum is exact in every dtype.
        return ((torch.arange(self.counts[0]) * 7 + rank) % 13).to(dtype)

    def run(self) -> None:
        getattr(self, self.name)()

    def all_reduce(self) -> None:
        dist.all_reduce(self.output)

    def all_gather(self) -> None:
        dist.all_gather_into_tensor(self.output, self.input)

    def reduce_scatter(self) -> None:
        dist.reduce_scatter_tensor(self.output, self.input)

    def broadcast(self) -> None:
        dist.broadcast(self.output, 0)

    def all_to_all(self) -> None:
        dist.all_to_all_single(self.output, self.input)

    def send_recv(self) -> None:
        if self.rank == 0:
            dist.send(self.input, 1)
        elif self.rank == 1:
            dist.recv(self.output, 0)

    def expected(self) -> Tensor:
        mine = slice(self.rank * self.counts[1], (self.rank + 1) * self.counts[1])
        if self.name == "all_reduce":
            return torch.stack(self.inputs).sum(0, dtype=self.inputs[0].dtype)
        if self.name == "reduce_scatter":
            return torch.stack(self.inputs).sum(0, dtype=self.inputs[0].dtype)[mine]
        if self.name == "all_gather":
            return torch.cat(self.inputs)
        if self.name == "all_to_all":
            return torch.cat([each.chunk(self.ranks)[self.rank] for each in self.inputs])
        return self.inputs[0]

    def is_right(self) -> bool:
        """Runs once on known values and looks at the result."""
        receives = self.name != "send_recv" or self.rank == 1
        self.output.zero_()
        if self.name in ("all_reduce", "broadcast"):
            self.output.copy_(self.input)
        self.run()
        right = not receives or torch.equal(self.output.cpu(), self.expected())
        # What is repeated must neither overflow nor become slow by its values.
        self.output.zero_()
        return right


class Copies:
    """The floor: the bytes of the operation, copied."""

    def __init__(self, size: int, device: str) -> None:
        self.source = torch.zeros(size, dtype=torch.uint8, device=device)
        self.target = torch.zeros(size, dtype=torch.uint8, device=device)

    def run(self) -> None:
        self.target.copy_(self.source)


def together() -> None:
    """All ranks, and their devices' streams, have come here."""
    anvil.synchronize()
    dist.all_reduce(_mark)
    anvil.synchronize()


def slowest(value: float) -> float:
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return float(values)


def timed(run: Callable[[], None], times: int) -> float:
    """Seconds of one run, of `times` one after the other."""
    together()
    begin = time.perf_counter()
    for _ in range(times):
        run()
    anvil.synchronize()
    return slowest((time.perf_counter() - begin) / times)


def measure(name: str, size: int, job: dict[str, Any]) -> dict[str, Any]:
    dtype = getattr(torch, job["dtype"])
    operations = {"anvil": Operation(name, size, dtype, "anvil")}
    operations["gloo"] = Operation(name, size, dtype, "cpu")
    wrong = []
    for way, operation in operations.items():
        if slowest(0.0 if operation.is_right() else 1.0) > 0:
            wrong.append(way)
    bytes_ = max(operations["anvil"].counts) * dtype.itemsize
    runs: dict[str, Callable[[], None]] = {way: each.run for way, each in operations.items()}
    runs["copy"] = Copies(bytes_, "anvil").run
    share = job["seconds"] / job["rounds"] / len(WAYS)
    times = {way: max(2, min(2000, int(share / timed(runs[way], 3)))) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(job["rounds"]):
        for way in WAYS:
            seconds[way].append(timed(runs[way], times[way]))
    return {"operation": name, "size": bytes_, "wrong": wrong, "seconds": seconds}


def main() -> None:
    global _mark
    rank, ranks, rendezvous, result = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    job = json.loads(sys.argv[5])
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo,anvil:anvil", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )
    anvil.init()
    _mark = torch.zeros(1, device="anvil")
    fallback = backend_of(dist.group.WORLD).fallback_reason
    found = [measure(name, size, job) for name in job["operations"] for size in job["sizes"]]
    if rank == 0:
        facts = {"fallback": fallback, "results": found}
        Path(result).write_text(json.dumps(facts))
    dist.barrier(device_ids=[anvil.current_device()])
    dist.destroy_process_group()


_mark: Tensor

if __name__ == "__main__":
    main()
