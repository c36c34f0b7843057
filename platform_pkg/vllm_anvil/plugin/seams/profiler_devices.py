# SPDX-License-Identifier: Apache-2.0
"""Seam: what the engine's profilers can record of a device.

What vLLM does
    `vllm.profiler.wrapper` has tables of the device types that it can profile, by which kinds of
    profiler, and of which activities; with a type that is not in them, a worker with
    `--profiler-config` does not start ("Unsupported profiler device type").
What is changed
    The device's type is in these tables, with PyTorch's profiler, and the activities that a device
    outside of PyTorch has: those of the CPU, and PrivateUse1. The latter are recorded by
    `plugin/device_profiler.py`.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform which profilers it has.
Test that fails then
    tests/plugin/test_seams.py::test_profiler_devices_is_needed
"""

from __future__ import annotations

ACTIVITIES = ("CPU", "PrivateUse1")


def apply() -> None:
    from vllm.platforms import current_platform
    from vllm.profiler import wrapper

    device = current_platform.device_type
    wrapper._DEFAULT_TORCH_PROFILER_ACTIVITIES[device] = ACTIVITIES
    wrapper._SUPPORTED_TORCH_PROFILER_ACTIVITIES[device] = frozenset(ACTIVITIES)
    wrapper._SUPPORTED_PROFILER_KINDS[device] = frozenset({"torch"})
