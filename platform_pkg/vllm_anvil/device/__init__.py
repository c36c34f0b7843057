# SPDX-License-Identifier: Apache-2.0
"""`torch.anvil`: the device in PyTorch.

Importing this module registers `torch.device("anvil")` in this process. Nothing else does, since
registering a device makes `torch.accelerator` mean it for every program in the process.

The names are those of `torch.cuda`. Devices are groups of the host's cores with a memory budget;
`ANVIL_DEVICES`, `ANVIL_VISIBLE_DEVICES` and `ANVIL_DEVICE_MEMORY` shape them.
"""

from __future__ import annotations

import sys

# torch loads autoload entry points while it is being imported; ours must not start before torch is
# complete, and must not be asked for again from within this import.
import torch

from vllm_anvil.device.errors import DeviceUnavailableError, load_extension

_C = load_extension()

from torch import OutOfMemoryError  # noqa: E402

from vllm_anvil.device import distributed, dlpack, sanitizer  # noqa: E402
from vllm_anvil.device.devices import (  # noqa: E402
    DeviceProperties,
    current_device,
    device,
    device_alias,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_num_threads,
    host_alias,
    init,
    is_available,
    is_bf16_supported,
    is_in_use,
    is_initialized,
    set_device,
    set_num_threads,
    synchronize,
)
from vllm_anvil.device.graphs import (  # noqa: E402
    Graph,
    GraphNode,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
)
from vllm_anvil.device.isa import active_isa, supported_isas  # noqa: E402
from vllm_anvil.device.memory import (  # noqa: E402
    empty_cache,
    empty_host_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_by_tag,
    memory_reserved,
    memory_stats,
    memory_summary,
    memory_tag,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    resume_memory,
    suspend_memory,
)
from vllm_anvil.device.random import (  # noqa: E402
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from vllm_anvil.device.streams import (  # noqa: E402
    Event,
    Stream,
    StreamContext,
    _sleep,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DeviceProperties",
    "DeviceUnavailableError",
    "Event",
    "Graph",
    "GraphNode",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_sleep",
    "active_isa",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_alias",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_host_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_num_threads",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "host_alias",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_in_use",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_by_tag",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "memory_tag",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "resume_memory",
    "sanitizer",
    "seed",
    "seed_all",
    "set_device",
    "set_num_threads",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "supported_isas",
    "suspend_memory",
    "synchronize",
]


def _is_in_bad_fork() -> bool:
    """torch asks this before it seeds: a forked child cannot use the device."""
    return bool(_C.is_forked_child())


def _lazy_init() -> None:
    init()


def _register() -> None:
    torch.utils.rename_privateuse1_backend("anvil")
    _C.register_graphs()
    torch._register_device_module("anvil", sys.modules[__name__])
    # Tensor.anvil(), Tensor.is_anvil, Module.anvil(), storage.anvil() and their kin.
    torch.utils.generate_methods_for_privateuse1_backend(for_packed_sequence=True, for_storage=True)
    distributed.register()
    dlpack.install()
    sanitizer.name_call_sites()


_register()
