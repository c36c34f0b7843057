# SPDX-License-Identifier: Apache-2.0
"""The engine's model runner on the device.

This is Model Runner V1 in eager mode, and it needs nothing of its own: what it takes from
`torch.cuda` comes from the device through plugin/seams, and the one Triton kernel it launches has
an override. The class exists so that logs, doctor and tests can name the runner they got.
"""

from __future__ import annotations

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class AnvilModelRunner(GPUModelRunner):
    """Model Runner V1 on an anvil device."""
