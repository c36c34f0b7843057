# SPDX-License-Identifier: Apache-2.0
"""vLLM's device communicator: collectives over the engine's CPU group.

A device tensor and its host alias share memory, so the CPU group's transport (gloo) reads and
writes device memory directly. Data travels as bytes: transports know few dtypes, bytes are one of
them. Sums are our own, always in rank order, so that a result depends neither on timing nor on
where an element lies in the message.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from vllm_anvil import device as anvil

# Up to here an all-reduce sends everything to everyone, which takes one exchange instead of two.
_ONE_EXCHANGE_BYTES = 1 << 16

# Keeps our messages apart from those that the engine itself sends over the group.
_TAG = 0x616E

# Managers of expert-parallel dispatch that are built of the collectives below.
_ALL2ALL_BACKENDS = ("naive", "allgather_reducescatter")


class AnvilCommunicator(DeviceCommunicatorBase):
    """Collectives of one group of ranks, on device or host tensors.

    Every rank of the group calls the same methods in the same order with tensors of the same
    dtype. Ranks in arguments (`src`, `dst`) count within the group. Inputs may have any strides
    and are not changed; results are new contiguous tensors on the input's device, unless a method
    says otherwise. Methods return when the data has arrived.
    """

    def __init__(
        self,
        cpu_group: ProcessGroup,
        device: torch.device | None = None,
        device_group: ProcessGroup | None = None,
        unique_name: str = "",
        **kwargs: Any,
    ) -> None:
        """
        Args:
            cpu_group: the ranks, with a transport for host memory.
            device: of received tensors.
            device_group: kept for the engine; nothing is sent over it.
            unique_name: of the engine's group, such as "tp:0".
            kwargs: further arguments of the base class.

        Raises:
            NotImplementedError: expert parallelism with an all-to-all backend other than
                allgather_reducescatter, or a stateless group (elastic expert parallelism).
        """
        if cpu_group not in dist.distributed_c10d._world.pg_map:
            raise NotImplementedError(
                f"group {unique_name!r} is stateless (elastic expert parallelism), which the "
                "anvil communicator does not implement: leave out --enable-elastic-ep"
            )
        super().__init__(cpu_group, device, device_group, unique_name, **kwargs)
        if self.use_all2all:
            if self.all2all_backend not in _ALL2ALL_BACKENDS:
                raise NotImplementedError(
                    f"all2all_backend={self.all2all_backend!r} is not implemented on anvil: "
                    "use --all2all-backend allgather_reducescatter"
                )
            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

    def destroy(self) -> None:
        """Releases what was built here; the groups belong to the engine. Again does nothing."""
        if self.all2all_manager is not None:
            self.all2all_manager.destroy()
            self.all2all_manager = None

    # Collectives

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in rank order; 16-bit floats are summed in float32."""
        if self.world_size == 1:
            return input_.clone()
        total = torch.empty(input_.shape, dtype=input_.dtype, device=input_.device)
        source, target = _host(input_).reshape(-1), _host(total).view(-1)
        if source.numel() * source.element_size() <= _ONE_EXCHANGE_BYTES:
            target.copy_(_sum(self._gather_all(source)))
        else:
            shares = self._split(source.numel())
            start = sum(shares[: self.rank_in_group])
            share = _sum(self._exchange(source, shares))
            target[start : start + share.numel()] = share
            parts = list(target.split(shares))
            self._exchange_parts([parts[self.rank_in_group]] * self.world_size, parts)
        return total

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' inputs, all of one shape, concatenated along `dim`."""
        return self.all_gatherv(input_, _positive(dim, input_))  # type: ignore[return-value]

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """As `all_gather`, with `sizes[rank]` elements along `dim` from each rank; None: equal.

        A list is gathered tensor by tensor.
        """
        if isinstance(input_, list):
            return [self.all_gatherv(each, dim, sizes) for each in input_]  # type: ignore[misc]
        dim = _positive(dim, input_)
        if sizes is None:
            sizes = [input_.shape[dim]] * self.world_size
        if len(sizes) != self.world_size or sizes[self.rank_in_group] != input_.shape[dim]:
            raise ValueError(
                f"sizes={sizes} must be {self.world_size} numbers, one per rank, but rank "
                f"{self.rank_in_group} has {input_.shape[dim]} elements along dim {dim}"
            )
        leading = input_.movedim(dim, 0)
        gathered = torch.empty(
            (sum(sizes), *leading.shape[1:]), dtype=input_.dtype, device=input_.device
        )
        source = _host(leading).contiguous()
        self._exchange_parts([source] * self.world_size, list(_host(gathered).split(sizes)))
        return gathered.movedim(0, dim).contiguous()

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's equal share along `dim` of the sum over the ranks."""
        return self.reduce_scatterv(input_, dim)

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """This rank's `sizes[rank]` elements along `dim` of the sum over the ranks.

        None: equal shares. Sums are those of `all_reduce`.
        """
        dim = _positive(dim, input_)
        if sizes is None:
            if input_.shape[dim] % self.world_size:
                raise ValueError(
                    f"{input_.shape[dim]} elements along dim {dim} cannot be shared equally by "
                    f"{self.world_size} ranks: give sizes to reduce_scatterv"
                )
            sizes = [input_.shape[dim] // self.world_size] * self.world_size
        if len(sizes) != self.world_size or sum(sizes) != input_.shape[dim]:
            raise ValueError(
                f"sizes={sizes} must be {self.world_size} numbers, one per rank, that sum to the "
                f"{input_.shape[dim]} elements along dim {dim}"
            )
        share = self._reduce_scatter(input_.movedim(dim, 0), sizes)
        return share.movedim(0, dim).contiguous()

    def reduce_scatterv_into_output(
        self,
        input_: torch.Tensor,
        output: torch.Tensor,
        dim: int = -1,
        sizes: list[int] | None = None,
    ) -> torch.Tensor:
        """As `reduce_scatterv`, written into `output`, which is returned."""
        return output.copy_(self.reduce_scatterv(input_, dim, sizes))

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """The ranks' inputs, all of one shape, concatenated along `dim` on `dst`; else None."""
        dim = _positive(dim, input_)
        source = _bytes(_host(input_).contiguous())
        if self.rank_in_group != dst:
            dist.gather(source, None, dst=self.ranks[dst], group=self.cpu_group)
            return None
        gathered = torch.empty(
            (self.world_size, *input_.shape), dtype=input_.dtype, device=input_.device
        )
        parts = [_bytes(part) for part in _host(gathered)]
        dist.gather(source, parts, dst=self.ranks[dst], group=self.cpu_group)
        return gathered.movedim(0, dim).flatten(dim, dim + 1).contiguous()

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Overwrites `tensor` with that of `src`, and returns it."""
        if self.world_size == 1:
            return tensor
        host = _host(tensor)
        message = host.contiguous()
        dist.broadcast(_bytes(message), self.ranks[src], group=self.cpu_group)
        if message.data_ptr() != host.data_ptr():
            host.copy_(message)
        return tensor

    # Point to point

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Sends to rank `dst`; None: to the next."""
        if dst is None:
            dst = (self.rank_in_group + 1) % self.world_size
        dist.send(_bytes(_host(tensor).contiguous()), self.ranks[dst], self.cpu_group, _TAG)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """A tensor of this size on the communicator's device, from rank `src`; None: the last."""
        if src is None:
            src = (self.rank_in_group - 1) % self.world_size
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        dist.recv(_bytes(_host(tensor)), self.ranks[src], self.cpu_group, _TAG)
        return tensor

    def batch_isend_irecv(self, p2p_ops: list[dist.P2POp]) -> None:
        """Runs sends and receives together and waits for all of them.

        Args:
            p2p_ops: `isend` and `irecv` operations; their `group_peer` counts within this group.
                The tensors of receives are written.
        """
        received: list[tuple[torch.Tensor, torch.Tensor]] = []
        works: list[Any] = []
        for op in p2p_ops:
            host = _host(op.tensor)
            message = host.contiguous()
            peer = self.ranks[op.group_peer]
            if op.op is dist.isend:
                works.append(dist.isend(_bytes(message), peer, self.cpu_group, _TAG))
            elif op.op is dist.irecv:
                works.append(dist.irecv(_bytes(message), peer, self.cpu_group, _TAG))
                received.append((host, message))
            else:
                raise ValueError(f"{op.op} is neither torch.distributed.isend nor irecv")
        for work in works:
            work.wait()
        for host, message in received:
            if message.data_ptr() != host.data_ptr():
                host.copy_(message)

    # Expert parallelism: the all-to-all manager's work where there is one, as the base class
    # has it where there is none.

    def dispatch_router_logits(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """Every rank's tokens with their router logits."""
        target: Any = super() if self.all2all_manager is None else self.all2all_manager
        return target.dispatch_router_logits(
            hidden_states, router_logits, is_sequence_parallel, extra_tensors
        )

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """Every rank's tokens with their experts."""
        target: Any = super() if self.all2all_manager is None else self.all2all_manager
        return target.dispatch(
            hidden_states, topk_weights, topk_ids, is_sequence_parallel, extra_tensors
        )

    def combine(
        self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False
    ) -> torch.Tensor:
        """This rank's tokens, summed over the ranks."""
        target: Any = super() if self.all2all_manager is None else self.all2all_manager
        return target.combine(hidden_states, is_sequence_parallel)

    def combine_into_output(
        self,
        hidden_states: torch.Tensor,
        output: torch.Tensor,
        is_sequence_parallel: bool = False,
    ) -> torch.Tensor:
        """As `combine`, written into `output`, which is returned."""
        target: Any = super() if self.all2all_manager is None else self.all2all_manager
        return target.combine_into_output(hidden_states, output, is_sequence_parallel)

    # Parts; all of these take and return contiguous host tensors.

    def _split(self, total: int) -> list[int]:
        share, rest = divmod(total, self.world_size)
        return [share + (rank < rest) for rank in range(self.world_size)]

    def _reduce_scatter(self, leading: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """The sum of this rank's slice along dim 0, on the input's device."""
        shape = (sizes[self.rank_in_group], *leading.shape[1:])
        share = torch.empty(shape, dtype=leading.dtype, device=leading.device)
        source = _host(leading).contiguous()
        _host(share).copy_(_sum(self._exchange(source, sizes)))
        return share

    def _gather_all(self, source: torch.Tensor) -> torch.Tensor:
        """[world_size, *source.shape]: every rank's `source`."""
        gathered = source.new_empty((self.world_size, *source.shape))
        self._exchange_parts([source.contiguous()] * self.world_size, list(gathered))
        return gathered

    def _exchange(self, source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """[world_size, sizes[rank], ...]: this rank's slice along dim 0 of every rank's source."""
        shape = (self.world_size, sizes[self.rank_in_group], *source.shape[1:])
        received = source.new_empty(shape)
        self._exchange_parts(list(source.contiguous().split(sizes)), list(received))
        return received

    def _exchange_parts(self, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> None:
        """Sends `outgoing[r]` to each rank r and receives `incoming[r]` from it.

        Only sizes of the two ends have to agree. Our own part may be the same memory in both.
        """
        mine = self.rank_in_group
        works: list[Any] = []
        for rank in range(self.world_size):
            if rank == mine:
                if incoming[mine].data_ptr() != outgoing[mine].data_ptr():
                    incoming[mine].copy_(outgoing[mine])
                continue
            # Both ends know the size, and skip what is empty alike.
            peer = self.ranks[rank]
            if incoming[rank].numel():
                works.append(dist.irecv(_bytes(incoming[rank]), peer, self.cpu_group, _TAG))
            if outgoing[rank].numel():
                works.append(dist.isend(_bytes(outgoing[rank]), peer, self.cpu_group, _TAG))
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


def _positive(dim: int, tensor: torch.Tensor) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"dim {dim} is out of range for a tensor of shape {tuple(tensor.shape)}")
    return dim % tensor.dim()


def _sum(parts: torch.Tensor) -> torch.Tensor:
    """Sum over dim 0, one after the other."""
    wide = parts.dtype in (torch.float16, torch.bfloat16)
    total = parts[0].float() if wide else parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
