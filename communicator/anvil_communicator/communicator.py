# SPDX-License-Identifier: Apache-2.0
"""vLLM's device communicator.

Device tensors travel over the device group where it has the backend "anvil", as commands of the
current stream; host tensors, and all tensors where it has not, over the engine's CPU group. Sums
are always in rank order, so that a result depends neither on the way it took nor on timing nor on
where an element lies in the message.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from anvil_communicator.device_collectives import DeviceCollectives
from anvil_communicator.host_collectives import HostCollectives
from vllm_anvil.device.distributed import backend_of

# Managers of expert-parallel dispatch that are built of the collectives below.
_ALL2ALL_BACKENDS = ("naive", "allgather_reducescatter")


class AnvilCommunicator(DeviceCommunicatorBase):
    """Collectives of one group of ranks, on device or host tensors.

    Every rank of the group calls the same methods in the same order with tensors of the same
    dtype. Ranks in arguments (`src`, `dst`) count within the group. Inputs may have any strides
    and are not changed; results are new contiguous tensors on the input's device, unless a method
    says otherwise. Over the device group methods return when their work is queued on the current
    stream, and can be captured into a graph; else when the data has arrived.
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
            device_group: the ranks, with a transport for device memory; what it has no backend
                "anvil" for goes over `cpu_group`.
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
        self._on_host = HostCollectives(cpu_group)
        backend = backend_of(device_group)
        self._on_device = None if backend is None else DeviceCollectives(backend)
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

    def _way_of(self, tensor: torch.Tensor) -> DeviceCollectives | HostCollectives:
        """What carries the tensor; the same on every rank."""
        on_device = self._on_device is not None and tensor.device.type == "anvil"
        return self._on_device if on_device else self._on_host  # type: ignore[return-value]

    # Collectives

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in rank order; 16-bit floats are summed in float32."""
        if self.world_size == 1:
            return input_.clone()
        total = torch.empty(input_.shape, dtype=input_.dtype, device=input_.device)
        self._way_of(input_).all_reduce(total, input_)
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
        self._way_of(input_).all_gather(list(gathered.split(sizes)), leading)
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
        leading = input_.movedim(dim, 0)
        shape = (sizes[self.rank_in_group], *leading.shape[1:])
        share = torch.empty(shape, dtype=input_.dtype, device=input_.device)
        self._way_of(input_).reduce_scatter(share, leading, sizes)
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
        if self.rank_in_group != dst:
            self._way_of(input_).gather(None, input_, dst)
            return None
        gathered = torch.empty(
            (self.world_size, *input_.shape), dtype=input_.dtype, device=input_.device
        )
        self._way_of(input_).gather(list(gathered), input_, dst)
        return gathered.movedim(0, dim).flatten(dim, dim + 1).contiguous()

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Overwrites `tensor` with that of `src`, and returns it."""
        if self.world_size == 1:
            return tensor
        self._way_of(tensor).broadcast(tensor, src)
        return tensor

    # Point to point

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Sends to rank `dst`; None: to the next."""
        if dst is None:
            dst = (self.rank_in_group + 1) % self.world_size
        self._way_of(tensor).send(tensor, dst)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """A tensor of this size on the communicator's device, from rank `src`; None: the last."""
        if src is None:
            src = (self.rank_in_group - 1) % self.world_size
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        self._way_of(tensor).recv(tensor, src)
        return tensor

    def batch_isend_irecv(self, p2p_ops: list[dist.P2POp]) -> None:
        """Runs sends and receives together.

        Args:
            p2p_ops: `isend` and `irecv` operations; their `group_peer` counts within this group.
                The tensors of receives are written.
        """
        for op in p2p_ops:
            if op.op not in (dist.isend, dist.irecv):
                raise ValueError(f"{op.op} is neither torch.distributed.isend nor irecv")
        for way in (self._on_host, self._on_device):
            ops = [op for op in p2p_ops if self._way_of(op.tensor) is way]
            if ops and way is not None:
                way.batch(
                    [op.op is dist.isend for op in ops],
                    [op.tensor for op in ops],
                    [op.group_peer for op in ops],
                )

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


def _positive(dim: int, tensor: torch.Tensor) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"dim {dim} is out of range for a tensor of shape {tuple(tensor.shape)}")
    return dim % tensor.dim()
