# SPDX-License-Identifier: Apache-2.0
"""Collectives over a group of ranks that moves host memory, such as gloo's.

A device tensor and its host alias share memory, so that the transport reads and writes device
memory directly. Data travels as bytes: transports know few dtypes, bytes are one of them. Sums are
our own, always in rank order, so that a result depends neither on timing nor on where an element
lies in the message.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from vllm_anvil import device as anvil

# Up to here an all-reduce sends everything to everyone, which takes one exchange instead of two.
_ONE_EXCHANGE_BYTES = 1 << 16

# Keeps our messages apart from those that the engine itself sends over the group.
_TAG = 0x616E


class HostCollectives:
    """What `AnvilCommunicator` is made of, over `group`, for host and device tensors.

    Ranks count within the group. Methods return when the data has arrived.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.ranks = dist.get_process_group_ranks(group)
        self.rank = dist.get_rank(group)
        self.size = len(self.ranks)

    def all_reduce(self, total: torch.Tensor, input_: torch.Tensor) -> None:
        """`total`, contiguous and of the input's shape and dtype, gets the sum over the ranks."""
        source, target = _host(input_).reshape(-1), _host(total).view(-1)
        if source.numel() * source.element_size() <= _ONE_EXCHANGE_BYTES:
            gathered = source.new_empty((self.size, *source.shape))
            self._exchange([source] * self.size, list(gathered))
            target.copy_(_sum(gathered))
        else:
            shares = self._split(source.numel())
            parts = list(target.split(shares))
            parts[self.rank].copy_(_sum(self._exchange_slices(source, shares)))
            self._exchange([parts[self.rank]] * self.size, parts)

    def all_gather(self, outputs: list[torch.Tensor], input_: torch.Tensor) -> None:
        """outputs[rank], contiguous, gets the input of the rank; its size is known to all."""
        source = _host(input_).contiguous()
        self._exchange([source] * self.size, [_host(output) for output in outputs])

    def reduce_scatter(self, share: torch.Tensor, input_: torch.Tensor, sizes: list[int]) -> None:
        """`share`, contiguous, gets the sum of this rank's slice, of `sizes[rank]` along dim 0."""
        source = _host(input_).contiguous()
        _host(share).copy_(_sum(self._exchange_slices(source, sizes)))

    def gather(self, outputs: list[torch.Tensor] | None, input_: torch.Tensor, dst: int) -> None:
        """outputs[rank], contiguous, gets the input of the rank; None anywhere but on `dst`."""
        source = _bytes(_host(input_).contiguous())
        parts = None if outputs is None else [_bytes(_host(output)) for output in outputs]
        dist.gather(source, parts, dst=self.ranks[dst], group=self.group)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        host = _host(tensor)
        message = host.contiguous()
        dist.broadcast(_bytes(message), self.ranks[src], group=self.group)
        if message.data_ptr() != host.data_ptr():
            host.copy_(message)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        dist.send(_bytes(_host(tensor).contiguous()), self.ranks[dst], self.group, _TAG)

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """`tensor` is contiguous."""
        dist.recv(_bytes(_host(tensor)), self.ranks[src], self.group, _TAG)

    def batch(self, sends: list[bool], tensors: list[torch.Tensor], peers: list[int]) -> None:
        """Sends (True) and receives (False) together."""
        received: list[tuple[torch.Tensor, torch.Tensor]] = []
        works: list[Any] = []
        for sending, tensor, peer in zip(sends, tensors, peers, strict=True):
            host = _host(tensor)
            message = host.contiguous()
            call = dist.isend if sending else dist.irecv
            works.append(call(_bytes(message), self.ranks[peer], self.group, _TAG))
            if not sending and message.data_ptr() != host.data_ptr():
                received.append((host, message))
        for work in works:
            work.wait()
        for host, message in received:
            host.copy_(message)

    # Parts; all of these take and return contiguous host tensors.

    def _split(self, total: int) -> list[int]:
        share, rest = divmod(total, self.size)
        return [share + (rank < rest) for rank in range(self.size)]

    def _exchange_slices(self, source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """[size, sizes[rank], ...]: this rank's slice along dim 0 of every rank's source."""
        received = source.new_empty((self.size, sizes[self.rank], *source.shape[1:]))
        self._exchange(list(source.contiguous().split(sizes)), list(received))
        return received

    def _exchange(self, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> None:
        """Sends `outgoing[r]` to each rank r and receives `incoming[r]` from it.

        Only sizes of the two ends have to agree. Our own part may be the same memory in both.
        """
        works: list[Any] = []
        for rank in range(self.size):
            if rank == self.rank:
                if incoming[rank].data_ptr() != outgoing[rank].data_ptr():
                    incoming[rank].copy_(outgoing[rank])
                continue
            # Both ends know the size, and skip what is empty alike.
            peer = self.ranks[rank]
            if incoming[rank].numel():
                works.append(dist.irecv(_bytes(incoming[rank]), peer, self.group, _TAG))
            if outgoing[rank].numel():
                works.append(dist.isend(_bytes(outgoing[rank]), peer, self.group, _TAG))
        for work in works:
            work.wait()


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor over the same memory, once the device has finished writing it."""
    if tensor.device.type == "cpu":
        return tensor
    anvil.current_stream(tensor.device).synchronize()
    return anvil.host_alias(tensor)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as [num_bytes] uint8."""
    return tensor.view(-1).view(torch.uint8)


def _sum(parts: torch.Tensor) -> torch.Tensor:
    """Sum over dim 0, one after the other."""
    wide = parts.dtype in (torch.float16, torch.bfloat16)
    total = parts[0].float() if wide else parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
