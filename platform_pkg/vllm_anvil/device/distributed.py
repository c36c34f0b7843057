# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed` on the device: the backend "anvil".

`init_process_group("anvil")` and `"cpu:gloo,anvil:anvil"` work once the device is registered.
Collectives are commands of the current stream; ranks of one host exchange them over memory that
they share. Ranks that cannot share memory use gloo, which a line in the log says.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist

from vllm_anvil import envs
from vllm_anvil.device.errors import load_extension

_C = load_extension()

logger = logging.getLogger("vllm.plugins.anvil.distributed")

NAME = "anvil"


def register() -> None:
    """Makes the backend known to torch.distributed, as the one for anvil tensors."""
    if not dist.is_available():
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["anvil"])
    # For a group of several backends torch looks for the first plugin among their names, and keeps
    # plugins by their names in capitals: it finds none, and warns when the group ends.
    plugins = dist.Backend._plugins
    dist.Backend._plugins = {NAME: plugins[NAME.upper()], **plugins}


def _create(options: Any, _backend_options: Any) -> Any:
    """The backend of one group; every rank of it calls this.

    Args:
        options: torch's `_DistributedBackendOptions`: the group's store, this rank, the number of
            ranks, the timeout in seconds and the group's name.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    refusal = "ANVIL_COMM=gloo" if envs.ANVIL_COMM == "gloo" else ""
    group = _C.ProcessGroup(store, rank, size, options.timeout, options.group_id, refusal)
    if group.fallback_reason:
        if rank == 0:
            logger.warning(
                "Group %r of %d ranks exchanges its data over gloo, which is slower, since its "
                "ranks share no memory: %s.",
                options.group_id,
                size,
                group.fallback_reason,
            )
        gloo_store = dist.PrefixStore("anvil/gloo", store)
        group.use_gloo(dist.ProcessGroupGloo(gloo_store, rank, size, options.timeout))
    return group


def backend_of(group: dist.ProcessGroup | None) -> Any:
    """The backend "anvil" of a group, or None where it has none."""
    if group is None or "anvil" not in {device.type for device in group._device_types}:
        return None
    backend = group._get_backend(torch.device("anvil"))
    return backend if isinstance(backend, _C.ProcessGroup) else None
