# SPDX-License-Identifier: Apache-2.0
"""The engine's Ray executor, whose ranks are actors of a Ray cluster, on this device.

The platform names it where the user asks for `--distributed-executor-backend ray`: the engine takes
a class there, and its own is told where to place ranks by a placement group that it finds. What is
left to this one is to say at once what the engine's would wait half an hour for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.utils.torch_utils import OMP_NUM_THREADS_SET_BY_VLLM
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2

from vllm_anvil import envs
from vllm_anvil.plugin import ray_cluster, seams

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

logger = init_logger("vllm.plugins.anvil.ray_executor")


class AnvilRayExecutor(RayExecutorV2):
    """Ranks on the devices of a Ray cluster's hosts, one each."""

    _reserved: PlacementGroup | None = None

    def _init_executor(self) -> None:
        """Takes devices and starts a rank on each.

        Raises ValueError when there is no cluster, when it does not know the devices, or when it
        has too few of them.
        """
        seams.apply(seams.RAY_EXECUTOR)
        ray_cluster.join(self.parallel_config)
        self._reserved = ray_cluster.reserve(self.parallel_config)
        super()._init_executor()

    def _build_runtime_env(self) -> dict[str, Any]:
        """With the variables that all ranks have in common: a rank reads most of them when its
        process starts, long before the engine copies its own environment there."""
        runtime_env: dict[str, Any] = super()._build_runtime_env()
        runtime_env["env_vars"] |= {
            name: os.environ[name]
            for name in envs.VARIABLES
            if name in os.environ and name not in envs.OF_A_HOST
        }
        if "OMP_NUM_THREADS" not in os.environ:
            # Ray sets it to 1 for whatever reserves no CPUs, which is not the user's choice.
            runtime_env["env_vars"][OMP_NUM_THREADS_SET_BY_VLLM] = "1"
        return runtime_env

    def _name_the_dead(self) -> None:
        """Logs which ranks Ray knows to have ended by themselves, where, and the reason. Where
        others notice first, their error names the rank that did not do its part."""
        import ray

        running = [h for h in getattr(self, "ray_worker_handles", ()) if h.run_ref is not None]
        if not running or not ray.is_initialized():
            return
        for handle in running:
            if not ray.wait([handle.run_ref], timeout=0)[0]:
                continue
            try:
                ray.get(handle.run_ref)
                reason: object = "it left its loop"
            except ray.exceptions.RayError as error:
                reason = error
            logger.error("Rank %d of the engine has ended: %s", handle.rank, reason)

    def shutdown(self) -> None:
        """Ends the ranks and gives the devices back. May be called again."""
        if not getattr(self, "shutting_down", False):
            self._name_the_dead()
        super().shutdown()
        group, self._reserved = self._reserved, None
        if group is not None:
            import ray

            if ray.is_initialized():
                ray.util.remove_placement_group(group)
