# SPDX-License-Identifier: Apache-2.0
"""The engine's model runner on the device.

This is Model Runner V1 in eager mode. What it takes from `torch.cuda` comes from the device
through plugin/seams, and the one Triton kernel it launches has an override.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from vllm_anvil.plugin import precision


class AnvilModelRunner(GPUModelRunner):
    """Model Runner V1 on an anvil device."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        precision.widen(self.get_model())
