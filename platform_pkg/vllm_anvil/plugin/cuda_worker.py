# SPDX-License-Identifier: Apache-2.0
"""The worker of the CUDA reference path: the engine's, which builds Anvil's layers."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger

from vllm_anvil.plugin import cuda_layers
from vllm_anvil.plugin.recording_worker import RecordingWorker

logger = init_logger("vllm.plugins.anvil.worker")


class AnvilCudaWorker(RecordingWorker):
    """A rank of the engine on one CUDA device.

    Two things differ from the engine's worker: the layers of plugin/custom_ops are registered
    before a model is built, and the log says what runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cuda_layers.register()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        super().init_device()
        logger.info(
            "%s on device=%s: model runner %s, layers by their references: %s",
            type(self).__name__,
            self.device,
            "V2" if self.use_v2_model_runner else "V1",
            ", ".join(sorted(layer.__name__ for layer in cuda_layers.registered())),
        )
