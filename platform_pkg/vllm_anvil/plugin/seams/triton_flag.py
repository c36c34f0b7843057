# SPDX-License-Identifier: Apache-2.0
"""Seam: vLLM must not take Triton for present while it does not run on the device.

What vLLM does
    `vllm.triton_utils.importing.HAS_TRITON` is decided at import and copied by name into many
    modules, which choose Triton kernels by it (`vllm.v1.sample.ops.topk_topp_sampler` for one).
    It is True with `CUDA_VISIBLE_DEVICES=""` and no active driver in a CUDA build, and in a CPU
    build where Triton has a backend named `cpu`; neither launches on this device.
What is changed
    The flag is False in every module of vLLM that holds it, and in its source for modules that
    are imported later.
Checked against
    vllm 0.32.
Unnecessary when
    Triton has an active driver for the device, or the flag follows the platform.
Test that fails then
    tests/plugin/test_seams.py::test_triton_flag_is_needed
"""

from __future__ import annotations

import sys


def apply() -> None:
    import vllm.triton_utils.importing  # noqa: F401  (decides the flag when nothing did so far)

    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get("HAS_TRITON") is True:
            module.HAS_TRITON = False  # type: ignore[attr-defined]
