# SPDX-License-Identifier: Apache-2.0
"""The places where vLLM must be adapted, one module each.

A seam's header says what vLLM does there (module and symbol), what is changed, which versions it
was checked against, what would make it unnecessary, and the test that fails when it is. No other
module changes anything of vLLM or torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

# Applied in this order. EVERY_PROCESS: when the platform is constructed, while much of vLLM is not
# imported yet. CONFIGURATION: before a configuration is made. WORKER: before a worker builds
# anything.
EVERY_PROCESS = ("engine_metadata",)
CONFIGURATION = ("batch_defaults",)
WORKER = (
    "torch_threads",
    "torch_cuda_names",
    "pinned_views",
    "kernel_warmup",
    "grammar_bitmask",
    "unquantized_gemm",
)
ALL = EVERY_PROCESS + CONFIGURATION + WORKER


def apply(names: Iterable[str]) -> None:
    """Applies seams in this process. Applying one again changes nothing."""
    for name in names:
        import_module(f"{__name__}.{name}").apply()
