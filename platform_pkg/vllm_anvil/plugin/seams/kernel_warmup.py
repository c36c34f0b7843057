# SPDX-License-Identifier: Apache-2.0
"""Seam: warming up kernels that the device does not have.

What vLLM does
    `vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model` calls
    `vllm.model_executor.warmup.kernel_warmup.kernel_warmup` whatever the platform is. It imports
    NVIDIA's implementations of models (and with them torchvision) to ask whether they are in use,
    and launches Triton, CuTe and FlashInfer kernels.
What is changed
    The name in `gpu_worker` means a function that does nothing. The dummy runs that
    `compile_or_warm_up_model` makes besides are the device's warm-up.
Checked against
    vllm 0.32.
Unnecessary when
    The call depends on the platform, or the imports are made on the platforms they are for.
Test that fails then
    tests/plugin/test_seams.py::test_kernel_warmup_is_needed
"""

from __future__ import annotations

from typing import Any


def warm_up_nothing(worker: Any, **kwargs: Any) -> None:
    """None of the kernels that vLLM warms up is launched on the device."""


def apply() -> None:
    from vllm.v1.worker import gpu_worker

    gpu_worker.kernel_warmup = warm_up_nothing
