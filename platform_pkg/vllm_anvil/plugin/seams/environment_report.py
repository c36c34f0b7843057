# SPDX-License-Identifier: Apache-2.0
"""Seam: `vllm collect-env`, the report of an environment that a report of a bug has with it.

What vLLM does
    `vllm.collect_env.get_pretty_env_info` knows CUDA, ROCm and XPU, and environment variables of
    its own and of theirs. Of another platform nothing is said, not even that there is one.
What is changed
    The report ends with a section on the platform: its version, instruction sets, devices with
    their cores and memory, and the variables ANVIL_* that are set. It is there wherever the
    platform has been chosen before: by the command `vllm collect-env`, which chooses one as it
    starts, and not by `python -m vllm.collect_env`, which asks for none.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform what to report.
Test that fails then
    tests/plugin/test_seams.py::test_environment_report_is_needed
"""

from __future__ import annotations

import functools
import os
from importlib import metadata

from vllm import collect_env

import vllm_anvil.device as anvil

RULE = "=" * 30


def section() -> str:
    """About the platform, in the form of the report's other sections."""
    lines = [RULE, f"{'Anvil Platform':^30}".rstrip(), RULE]

    def add(name: str, value: object) -> None:
        lines.append(f"{name:<29}: {value}")

    add("vllm-anvil version", metadata.version("vllm-anvil"))
    usable = ", ".join(anvil.supported_isas())
    add("Instruction set", f"{anvil.active_isa()} (this machine has: {usable})")
    for index in range(anvil.device_count()):
        device = anvil.get_device_properties(index)
        cores = ", ".join(map(str, device.cores))
        memory = f"{device.total_memory / (1 << 30):.2f} GiB"
        add(f"anvil:{index}", f"{device.name}; cores {cores}; {memory}")
    ours = sorted((k, v) for k, v in os.environ.items() if k.startswith("ANVIL_"))
    return "\n".join([*lines, *(f"{name}={value}" for name, value in ours)])


def apply() -> None:
    engines = collect_env.get_pretty_env_info
    if hasattr(engines, "__wrapped__"):
        return

    @functools.wraps(engines)
    def get_pretty_env_info() -> str:
        return f"{engines().rstrip()}\n\n{section()}"

    collect_env.get_pretty_env_info = get_pretty_env_info
