# SPDX-License-Identifier: Apache-2.0
"""Triton on the device: the engine's and everybody's Triton kernels, compiled to native code.

Triton finds its backends in the dictionary `triton.backends.backends`. `activate` puts this one
there, for this process alone; nothing else does, so Triton is as it was for all others.
`import vllm_anvil.triton` is the same for programs of one's own.
"""

from __future__ import annotations

import importlib.util
import logging
import os

__all__ = ["activate", "refusal"]

logger = logging.getLogger("vllm.plugins.anvil")


def refusal(name: str = "cpu") -> str | None:
    """Why the backend cannot become Triton's in this process; None when it can.

    Raises:
        ImportError: Triton is not installed.
    """
    backends = _backends()
    from vllm_anvil.triton_backend.driver import AnvilTritonDriver, active_rivals

    other = backends.get(name)
    if other is not None and other.driver is not AnvilTritonDriver:
        return f"Triton already has a backend named {name} ({other.driver.__module__})"
    selected = os.environ.get("TRITON_DEFAULT_BACKEND")
    if selected == name:
        return None
    if selected:
        return f"TRITON_DEFAULT_BACKEND={selected} asks for another backend"
    rivals = active_rivals()
    if rivals:
        return (
            f"Triton's backend {rivals[0]} is active, and only one can be; "
            f"TRITON_DEFAULT_BACKEND={name} chooses this one"
        )
    return None


def activate(name: str = "cpu") -> bool:
    """Makes the device Triton's target in this process; may be called again.

    Args:
        name: the key in `triton.backends.backends`. Engines whose version says "cpu" look for
            `cpu`, others ignore a backend of that name. The last call's name holds.

    Returns:
        Whether the backend is there now. False, with the reason logged at debug, where another
        backend has to stay (`refusal`).

    Raises:
        ImportError: Triton is not installed.
    """
    reason = refusal(name)
    if reason is not None:
        logger.debug("anvil's Triton backend stays out: %s", reason)
        return False
    backends = _backends()
    from triton.backends import Backend

    from vllm_anvil.triton_backend import cache, triton_key
    from vllm_anvil.triton_backend.compiler import AnvilTritonBackend
    from vllm_anvil.triton_backend.driver import AnvilTritonDriver

    for key in [key for key, one in backends.items() if one.driver is AnvilTritonDriver]:
        if key != name:
            del backends[key]
    if name not in backends:
        backends[name] = Backend(AnvilTritonBackend, AnvilTritonDriver)
    cache.install()
    triton_key.install()
    return True


def _backends() -> dict:
    if importlib.util.find_spec("triton") is None:
        raise ImportError("Triton is not installed, so it cannot be used: pip install triton")
    from triton.backends import backends

    return backends
