# SPDX-License-Identifier: Apache-2.0
"""Collectives on device tensors over the process group's backend "anvil"."""

from typing import Any

import torch
import torch.distributed as dist


class DeviceCollectives:
    """What `AnvilCommunicator` is made of, on device tensors.

    Each call is a command of the current stream: it returns when that is queued, and can be
    captured into a graph. Ranks count within the group. Sums are those of `HostCollectives`, to
    the bit.
    """

    def __init__(self, backend: Any) -> None:
        """
        Args:
            backend: of a group, from `vllm_anvil.device.distributed.backend_of`.
        """
        self.backend = backend

    def all_reduce(self, total: torch.Tensor, input_: torch.Tensor) -> None:
        """`total`, of the input's shape and dtype, gets the sum over the ranks."""
        self.backend.all_reduce_into(total, input_)

    def all_gather(self, outputs: list[torch.Tensor], input_: torch.Tensor) -> None:
        """outputs[rank] gets the input of the rank; its size is known to all."""
        self.backend.allgather([outputs], [input_])

    def reduce_scatter(self, share: torch.Tensor, input_: torch.Tensor, sizes: list[int]) -> None:
        """`share` gets the sum of this rank's slice, of `sizes[rank]` along dim 0."""
        self.backend.reduce_scatter([share], [list(input_.contiguous().split(sizes))])

    def gather(self, outputs: list[torch.Tensor] | None, input_: torch.Tensor, dst: int) -> None:
        """outputs[rank] gets the input of the rank; None anywhere but on `dst`."""
        options = dist.GatherOptions()
        options.rootRank = dst
        self.backend.gather([] if outputs is None else [outputs], [input_], options)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = src
        self.backend.broadcast([tensor], options)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.backend.send([tensor], dst, 0)

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        self.backend.recv([tensor], src, 0)

    def batch(self, sends: list[bool], tensors: list[torch.Tensor], peers: list[int]) -> None:
        """Sends (True) and receives (False) together."""
        self.backend.start_coalescing()
        try:
            for sending, tensor, peer in zip(sends, tensors, peers, strict=True):
                (self.send if sending else self.recv)(tensor, peer)
        finally:
            self.backend.end_coalescing()
