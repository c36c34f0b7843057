# SPDX-License-Identifier: Apache-2.0
"""Seam: the devices that Ray has given to a rank.

What vLLM does
    `vllm.v1.executor.ray_executor_v2.RayWorkerProc.get_node_and_physical_gpu_ids` looks the
    platform's `ray_device_key` up in what `ray.runtime_context.RuntimeContext.get_accelerator_ids`
    returns, which has the accelerators that Ray knows by name and no other resource. There is no
    way to name one to Ray.
What is changed
    In a process that Ray has started, the method's result has the anvil devices too, by their
    physical numbers. Ray's numbers are places among the devices that its host lets be seen.
Checked against
    vllm 0.32, ray 2.60.
Unnecessary when
    Ray lets accelerators be registered, or the engine asks the platform for the devices.
Test that fails then
    tests/plugin/test_rank_seams.py::test_ray_devices_is_needed
"""

from __future__ import annotations

import sys
from typing import Any

from vllm_anvil import envs
from vllm_anvil.plugin.ray_cluster import RESOURCE


def physical(places: list[int]) -> list[str]:
    """Physical numbers of the devices at these places among the visible ones of this host.

    Raises ValueError where the host has fewer.
    """
    visible = envs.ANVIL_VISIBLE_DEVICES or range(envs.ANVIL_DEVICES)
    if places and max(places) >= len(visible):
        raise ValueError(
            f"Ray gave a rank device {max(places) + 1} of this host, which has {len(visible)}: it "
            f"was told of more {RESOURCE} devices than there are. Run `ray start` here with "
            f"--resources='{{\"{RESOURCE}\": {len(visible)}}}', or with ANVIL_DEVICES set to the "
            "number it is told."
        )
    return [str(visible[place]) for place in sorted(places)]


def apply() -> None:
    # Ray's own processes have this before they load anything of an actor's.
    module: Any = sys.modules.get("ray.runtime_context")
    if module is None:
        return
    context = module.RuntimeContext
    engine_method = context.get_accelerator_ids
    if getattr(engine_method, "knows_anvil", False):
        return

    def get_accelerator_ids(self: Any) -> dict[str, list[str]]:
        places = self.worker.get_accelerator_ids_for_accelerator_resource(
            RESOURCE, f"^{RESOURCE}_group_[0-9A-Za-z]+$"
        )
        return {**engine_method(self), RESOURCE: physical(places)}

    get_accelerator_ids.knows_anvil = True  # type: ignore[attr-defined]
    context.get_accelerator_ids = get_accelerator_ids
