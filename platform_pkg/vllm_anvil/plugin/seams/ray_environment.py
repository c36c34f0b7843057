# SPDX-License-Identifier: Apache-2.0
"""Seam: variables that each of a Ray cluster's hosts has values of its own for.

What vLLM does
    `vllm.v1.executor.ray_executor_v2.RayExecutorV2` gives its ranks every variable of the process
    that starts them, except those of `vllm.v1.executor.ray_utils.WORKER_SPECIFIC_ENV_VARS`, which
    knows the variables that choose the devices of NVIDIA's and AMD's GPUs.
What is changed
    The set has the variables of `vllm_anvil.envs.OF_A_HOST` as well: how many devices the first
    host is cut into, which of them are visible and what they hold says nothing about another's.
Checked against
    vllm 0.32.
Unnecessary when
    The engine leaves out the platform's `device_control_env_var`, and variables that the platform
    names.
Test that fails then
    tests/plugin/test_rank_seams.py::test_ray_environment_is_needed
"""

from __future__ import annotations

from vllm_anvil import envs


def apply() -> None:
    from vllm.v1.executor.ray_utils import WORKER_SPECIFIC_ENV_VARS

    WORKER_SPECIFIC_ENV_VARS.update(envs.OF_A_HOST)
