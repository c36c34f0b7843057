# SPDX-License-Identifier: Apache-2.0
"""The device communicator of the CUDA reference path: the engine's, which says what it uses."""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
from vllm.logger import init_logger

logger = init_logger("vllm.plugins.anvil.communicator")

# Attributes of the engine's communicator -> the ways to sum over ranks that they hold.
TRANSPORTS = {
    "pynccl_comm": "NCCL",
    "ca_comm": "vLLM's custom all-reduce",
    "qr_comm": "quick all-reduce",
    "symm_mem_comm": "torch's symmetric memory",
    "fi_ar_comm": "FlashInfer",
    "fi_pcie_ipc_ar_comm": "FlashInfer over PCIe",
    "aiter_ar_comm": "AITER",
}


class AnvilCudaCommunicator(CudaCommunicator):
    """Collectives of one group of ranks on CUDA tensors, all of them the engine's.

    The platform leaves NCCL as the only way to sum (plugin/cuda_platform.py). What a user has
    switched on besides is used, and the log names it: sums in another order are a difference to
    know about when results are compared.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.world_size > 1:
            logger.info(
                "%s of group %s: %d ranks over %s",
                type(self).__name__,
                self.unique_name,
                self.world_size,
                ", ".join(self.transports()),
            )

    def transports(self) -> list[str]:
        """The ways to sum over ranks that are set up, in words."""
        held = {words: getattr(self, name, None) for name, words in TRANSPORTS.items()}
        return [
            words
            for words, transport in held.items()
            if transport is not None and not getattr(transport, "disabled", False)
        ]
