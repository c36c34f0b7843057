# SPDX-License-Identifier: Apache-2.0
"""What is measured: a layer's shape with a batch, and the inputs between which runs rotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anvil_attention.contract import AttentionCall, AttentionImplementation, AttentionSpec
from anvil_attention.synthetic_batch import Request, make_call
from anvil_attention.verification import PlacedCall, place_call

from .batch_spec import format_batch, kind
from .cost import Cost, cost

# Inputs of a problem together are at least this many times the device's last-level cache, where
# memory allows.
BEYOND_CACHE = 3
MOST_SETS = 128


@dataclass(frozen=True)
class Problem:
    """One row of the benchmark. It can be pickled, and gives the same call in every process.

    Attributes:
        shape: name of the model's shape, or of where a recorded call is from.
        recorded: a call that was recorded, instead of a random one.
        recorded_output: what it wrote then, or None where that is not known.
    """

    shape: str
    spec: AttentionSpec
    requests: tuple[Request, ...]
    layout: str = "LBHNC"
    recorded: AttentionCall | None = field(default=None, compare=False)
    recorded_output: Tensor | None = field(default=None, compare=False)

    @property
    def batch(self) -> str:
        return format_batch(self.requests)

    @property
    def kind(self) -> str:
        return kind(self.requests)

    @property
    def label(self) -> str:
        return f"{self.shape} {self.batch}"

    @property
    def cost(self) -> Cost:
        causal = True if self.recorded is None else self.recorded.causal
        if isinstance(causal, Tensor):
            flags = [bool(flag) for flag in causal.tolist()]
            return cost(self.spec, self.requests, flags[: len(self.requests)])
        return cost(self.spec, self.requests, causal)

    def host_call(self, seed: int = 0) -> AttentionCall:
        """The call on the CPU. Recorded ones are the same for every seed."""
        if self.recorded is not None:
            return self.recorded
        return make_call(self.spec, self.requests, seed=seed, layout=self.layout)


@dataclass(frozen=True)
class Rotation:
    """Inputs of one problem on a device; runs take them in turn.

    Attributes:
        first: the one whose results are checked.
        others: the rest.
        total_bytes: what all of them together make a run read.
        cache_bytes: of the device's last-level cache.
        neediest: the implementation whose workspace is largest, which every set has.
    """

    first: PlacedCall
    others: tuple[AttentionCall, ...]
    total_bytes: int
    cache_bytes: int
    neediest: AttentionImplementation | None = None

    @property
    def calls(self) -> tuple[AttentionCall, ...]:
        return self.first.call, *self.others

    @property
    def beyond_cache(self) -> bool:
        return self.total_bytes > self.cache_bytes


def allocated_bytes(host: AttentionCall) -> int:
    """Bytes of a call's tensors, each storage once."""
    storages = {}
    for value in (host.query, host.key_cache, host.value_cache, host.block_table, host.output):
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def sets_needed(moved: int, allocated: int, cache: int, memory: int) -> int:
    """How many sets of inputs runs rotate between: as many as exceed the cache `BEYOND_CACHE`
    times, at least 2, as far as `memory` bytes allow."""
    wanted = max(2, -(-BEYOND_CACHE * cache // max(moved, 1)))
    return max(1, min(wanted, MOST_SETS, memory // max(allocated, 1)))


def make_rotation(
    problem: Problem,
    device: torch.device,
    implementations: Sequence[AttentionImplementation],
    *,
    cache: int,
    memory: int,
    seed: int = 0,
) -> Rotation:
    """Allocates the inputs of a problem.

    Args:
        implementations: the calls get a workspace large enough for each of them.
        cache: bytes of the device's last-level cache.
        memory: bytes that the sets may take on the device.

    Raises MemoryError where not even one set fits.
    """
    host = problem.host_call(seed)
    allocated = allocated_bytes(host)
    if allocated > memory:
        raise MemoryError(
            f"{problem.label} needs {allocated / 2**30:.2f} GiB for one set of inputs; "
            f"{memory / 2**30:.2f} GiB may be used (--memory)"
        )
    # The first one's copy on the host counts like a set: most devices here share its memory.
    count = sets_needed(problem.cost.moved_bytes, allocated, cache, memory - allocated)
    neediest = max(
        implementations,
        key=lambda i: i.workspace_bytes(problem.spec, host.query.shape[0], len(host.seq_lens)),
        default=None,
    )
    first = place_call(host, device, neediest)
    others = tuple(
        place_call(problem.host_call(seed + index), device, neediest).call
        for index in range(1, count)
    )
    return Rotation(first, others, problem.cost.moved_bytes * count, cache, neediest)
