# SPDX-License-Identifier: Apache-2.0
"""What a Ray cluster must know of the devices, and devices of it for an engine.

To Ray the devices are a resource of a name of their own, so that a cluster may have GPUs besides.
It numbers them as it numbers GPUs, which is how ranks of one host get devices apart, if the cluster
was started with that name among its `custom_unit_instance_resources`; otherwise it only counts.

Neither ray nor vllm is imported until a cluster is asked: `vllm-anvil doctor` reads the commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from vllm.config import ParallelConfig

RESOURCE = "ANVIL"
NUMBERED = "custom_unit_instance_resources"
# Devices that another engine has just given back are free within seconds.
PATIENCE_S = 30.0


def start_commands(devices: int) -> dict[str, str]:
    """Commands that start Ray on the first host and on each further one, for a host with so many
    devices."""
    system = json.dumps({NUMBERED: RESOURCE})
    resources = json.dumps({RESOURCE: devices})
    return {
        "first host": f"ray start --head --system-config='{system}' --resources='{resources}'",
        "further hosts": f"ray start --address=FIRST_HOST:6379 --resources='{resources}'",
    }


def _first_command() -> str:
    return start_commands(1)["first host"].replace("1}", "N}")


def unnumbered(system_config: Mapping[str, Any]) -> str | None:
    """Why a cluster with this configuration gives its devices no numbers, or None when it does."""
    if RESOURCE in str(system_config.get(NUMBERED, "")).split(","):
        return None
    return (
        f"The Ray cluster only counts its {RESOURCE} devices instead of numbering them, so that "
        "ranks of one host would share a device. Start Ray again, the first host with\n"
        f"    {_first_command()}\nand N the number of its devices (docs/howto/ray.md)."
    )


def too_few(needed: int, devices: Mapping[str, float], free: Mapping[str, float]) -> str | None:
    """Why an engine of `needed` ranks finds no place, or None when it does.

    `devices` and `free` are the devices, and those of them not in use, of each host by its address.
    """
    if sum(devices.values()) < needed:
        known = ", ".join(f"{int(count)} on {host}" for host, count in sorted(devices.items()))
        return (
            f"The engine's {needed} ranks need {needed} {RESOURCE} devices, and the Ray cluster "
            f"has {int(sum(devices.values()))} ({known or 'none'}). Start fewer ranks with "
            "--tensor-parallel-size, or Ray on more hosts, each with "
            f"--resources='{json.dumps({RESOURCE: 1}).replace('1', 'N')}' and N the number of its "
            "devices (docs/howto/ray.md)."
        )
    if sum(free.values()) < needed:
        used = ", ".join(
            f"{int(devices[host] - free.get(host, 0))} of {int(devices[host])} on {host}"
            for host in sorted(devices)
        )
        return (
            f"The engine's {needed} ranks need {needed} {RESOURCE} devices, and others use too "
            f"many of the Ray cluster's: {used}. Stop what uses them (`ray list actors`), or "
            "start fewer ranks with --tensor-parallel-size."
        )
    return None


def join(parallel: ParallelConfig) -> None:
    """Connects this process to a running cluster that numbers its devices.

    Raises ValueError where there is none.
    """
    import ray
    from ray._private.state import state

    if not ray.is_initialized():
        try:
            ray.init(address="auto", runtime_env=parallel.ray_runtime_env)
        except ConnectionError as error:
            raise ValueError(
                f"--distributed-executor-backend ray: no Ray cluster was found ({error}). Start "
                f"one before the engine, with\n    {_first_command()}\nand N the number of this "
                "host's devices, or name it in RAY_ADDRESS (docs/howto/ray.md)."
            ) from None
    problem = unnumbered(state.get_system_config())
    if problem is not None:
        raise ValueError(problem)


def reserve(parallel: ParallelConfig) -> PlacementGroup | None:
    """A device for each rank, in a placement group that `parallel` refers to from now on; None
    where it, or the program that the engine is part of, has one already.

    Raises ValueError when the cluster has too few devices, at once, or has them in use.
    """
    import ray
    from ray.util import placement_group, remove_placement_group

    if parallel.placement_group or ray.util.get_current_placement_group():
        return None
    needed = parallel.world_size
    problem = too_few(needed, devices := _devices(), devices)
    if problem is not None:
        raise ValueError(problem)
    # A group of its own waits for devices that become free, and only then takes all of them.
    group = placement_group([{RESOURCE: 1.0} for _ in range(needed)], strategy="PACK")
    if not group.wait(PATIENCE_S):
        problem = too_few(needed, _devices(), _free())
        remove_placement_group(group)
        raise ValueError(
            problem
            or f"The Ray cluster has {needed} {RESOURCE} devices free and gave none within "
            f"{PATIENCE_S:.0f} seconds: `ray status` says what it waits for."
        )
    parallel.placement_group = group
    return group


def _devices() -> dict[str, float]:
    """Devices of each living host, by its address."""
    import ray

    return {
        node["NodeManagerAddress"]: node["Resources"][RESOURCE]
        for node in ray.nodes()
        if node["Alive"] and RESOURCE in node["Resources"]
    }


def _free() -> dict[str, float]:
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return {
        node["NodeManagerAddress"]: free.get(node["NodeID"], {}).get(RESOURCE, 0.0)
        for node in ray.nodes()
        if node["Alive"]
    }
