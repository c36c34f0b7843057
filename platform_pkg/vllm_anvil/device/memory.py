# SPDX-License-Identifier: Apache-2.0
"""Device memory: what is held, by whom, and how to give it back.

Figures are bytes. "Allocated" is what tensors hold, "reserved" what the pools hold from the
operating system, cached blocks included; the hard limit applies to what is reserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vllm_anvil import _C
from vllm_anvil.device.devices import DeviceLike, device_index, get_device_name


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Counters under torch's names, such as `allocated_bytes.all.peak`."""
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes: what can still be allocated, and the device's hard limit."""
    return torch.accelerator.get_memory_info(device_index(device))


def empty_cache() -> None:
    """Returns memory that no tensor holds to the operating system, on every device."""
    torch.accelerator.empty_cache()


def empty_host_cache() -> None:
    """Returns pinned memory that no tensor holds to the operating system."""
    torch.accelerator.empty_host_cache()


@contextmanager
def memory_tag(tag: str) -> Iterator[None]:
    """Memory allocated by this thread inside the context belongs to `tag`.

    Each tag has pools of its own, so that freeing all of a tag's tensors returns whole mappings,
    and `memory_summary` and out-of-memory errors can say what holds the memory.
    """
    _C.push_memory_tag(tag)
    try:
        yield
    finally:
        _C.pop_memory_tag()


def memory_by_tag(device: DeviceLike = None) -> dict[str, dict[str, int]]:
    """`{tag: {"allocated_bytes": ..., "reserved_bytes": ...}}`."""
    return _C.tag_stats(device_index(device))


def suspend_memory(tag: str, folder: str | None = None, device: DeviceLike = None) -> int:
    """Gives back the memory of all tensors allocated under `tag`, and returns its bytes.

    The tensors stay, at their addresses, and so do graphs over them. They must not be used before
    `resume_memory`, which would end the process, and nothing can be allocated under the tag.

    Args:
        folder: where their contents are kept, in a file without a name that is gone with the
            process; None: contents are lost, and zeros after `resume_memory`.

    Raises:
        RuntimeError: the tag is suspended already, or the file cannot be written. Then all is as
            it was.
    """
    return _C.suspend_memory(device_index(device), tag, folder)


def resume_memory(tag: str, device: DeviceLike = None) -> int:
    """Brings back what `suspend_memory` gave away, and returns its bytes.

    Raises:
        torch.OutOfMemoryError: there is no room for it any more.
        RuntimeError: the tag is not suspended, or the file cannot be read. It stays suspended.
    """
    return _C.resume_memory(device_index(device), tag)


def _human(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def memory_summary(device: DeviceLike = None) -> str:
    """A table for people: limit, free, allocated and reserved with peaks, and each tag's share."""
    index = device_index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    lines = [
        f"anvil:{index}  {get_device_name(index)}",
        f"  limit {_human(total)}, free {_human(free)}, "
        f"out-of-memory errors {stats['num_ooms']}, cache flushes {stats['num_alloc_retries']}",
        f"  {'':<12}{'now':>12}{'peak':>12}",
    ]
    for label, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
        now, peak = stats[f"{key}.all.current"], stats[f"{key}.all.peak"]
        lines.append(f"  {label:<12}{_human(now):>12}{_human(peak):>12}")
    lines.append(f"  {'by tag':<12}{'allocated':>12}{'reserved':>12}")
    for tag, held in sorted(memory_by_tag(index).items()):
        lines.append(
            f"  {tag:<12}{_human(held['allocated_bytes']):>12}{_human(held['reserved_bytes']):>12}"
        )
    return "\n".join(lines)
