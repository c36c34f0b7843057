# SPDX-License-Identifier: Apache-2.0
"""Native implementations that stand in for kernels of vLLM which Triton's backend compiles too.

Only those are here that were measured to be at least twice as fast (`benchmarks/
triton_overrides.py`); every other kernel is compiled. ANVIL_TRITON_OVERRIDES=0 turns all of them
off.

vLLM's own seam for this is `vllm.triton_utils.dispatcher.register_kernels`. It is not used, since
what it puts in a kernel's place forgets the launch grid, which some kernels learn their work from;
is no `JITFunction` any more, which vLLM's warm-up refuses; and has no compiled kernel to go back to
for arguments that the native one does not take. See `routing` for what is done instead.
"""

from __future__ import annotations

import importlib
from typing import Any

from vllm.logger import init_logger

from vllm_anvil import envs
from vllm_anvil.plugin.triton_overrides import sampling
from vllm_anvil.plugin.triton_overrides.routing import Override, refusal, restore, route

logger = init_logger("vllm.plugins.anvil.triton_overrides")

# By "module:qualified name" of the kernel.
OVERRIDES: dict[str, Override] = {
    "vllm.v1.sample.ops.topk_topp_triton:_topk_topp_kernel": sampling.topk_topp,
}


def register() -> None:
    """Routes launches of the kernels in `OVERRIDES` to their native implementations.

    May be called any number of times. An override that does not fit the installed vLLM is left out
    with a warning, and the compiled kernel stays.
    """
    if not envs.ANVIL_TRITON_OVERRIDES:
        return
    for name, override in OVERRIDES.items():
        kernel = _find(name)
        reason = "vLLM has no such kernel" if kernel is None else refusal(kernel, override)
        if reason is None:
            route(kernel, override)
        else:
            logger.warning("The native %s is not used: %s.", name, reason)


def unregister() -> None:
    """Undoes `register`: every kernel is the compiled one again."""
    for name in OVERRIDES:
        kernel = _find(name)
        if kernel is not None:
            restore(kernel)


def _find(name: str) -> Any | None:
    module, _, path = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found
