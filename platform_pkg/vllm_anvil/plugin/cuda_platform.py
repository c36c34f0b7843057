# SPDX-License-Identifier: Apache-2.0
"""The CUDA reference path: the engine's CUDA platform with Anvil's attention and ops.

`ANVIL_TARGET=cuda` makes vLLM take this class on a GPU machine. It is there to run the same
attention, the same layers and the same model code on other hardware, and so to tell a mistake of
the anvil device from one of the code above it. It is a subclass of the engine's own platform, as
the engine asks `is_cuda()` in many places, which an out-of-tree platform answers with no.

The anvil device is not loaded: torch has one accelerator in a process, and here it is CUDA. The ops
run by their references (vllm_anvil.references), registered before anything asks for them.

vLLM imports this module while it is itself being imported; see plugin/platform.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from vllm.logger import init_logger
from vllm.platforms.cuda import CudaPlatform

from vllm_anvil import envs
from vllm_anvil.plugin import attention
from vllm_anvil.references import registration

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
    from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

logger = init_logger("vllm.plugins.anvil.platform")

COMMUNICATOR = "anvil_communicator.cuda_communicator.AnvilCudaCommunicator"
WORKER = "vllm_anvil.plugin.cuda_worker.AnvilCudaWorker"
NAME = "the CUDA reference path"

# Variables of the engine for faster ways than NCCL to sum over ranks, chosen by size and hardware.
# They are on by default, and off here unless the user sets them.
SHORT_CUTS = ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER")


class AnvilCudaPlatform(CudaPlatform):
    """A CUDA GPU, with Anvil's attention, layers, worker and communicator.

    Everything that is not overridden is the engine's: what the GPU is, its memory, its streams, and
    the model runner. Constructing it raises, with one message, when an ANVIL_* variable cannot be
    used or another accelerator than CUDA is torch's in this process.
    """

    # Inductor is not used: nothing is compiled.
    simple_compile_backend = "eager"

    def __init__(self) -> None:
        super().__init__()
        envs.validate()
        _require_cuda()
        registration.register()
        attention.register()
        for name in SHORT_CUTS:
            os.environ.setdefault(name, "0")

    # ------------------------------------------------------------------ configuration

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        from vllm_anvil.plugin import cuda_config

        super().apply_config_platform_defaults(vllm_config)
        cuda_config.apply_defaults(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Sets the worker and eager mode; refuses, by name, what the path cannot do."""
        from vllm_anvil.plugin import cuda_config

        cuda_config.refuse_unsupported(vllm_config)
        cuda_config.update(vllm_config, worker_cls=WORKER)
        super().check_and_update_config(vllm_config)

    @classmethod
    def validate_environ(cls, hard_fail: bool) -> None:
        """vLLM's check of VLLM_* names, and the same for ANVIL_*."""
        super().validate_environ(hard_fail)
        for message in envs.unknown_messages():
            if hard_fail:
                raise ValueError(message)
            logger.warning("%s", message)

    # ------------------------------------------------------------------ what runs

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """Path of Anvil's attention backend. Raises ValueError, with the reasons, for a selection
        or an attention that it does not serve."""
        return attention.choose(selected_backend, attn_selector_config, NAME)

    @classmethod
    def get_mla_prefill_backend_cls(
        cls, mla_selector_config: MLAPrefillSelectorConfig
    ) -> type[MLAPrefillBackend]:
        """What the layer for multi-head latent attention holds besides its backend."""
        return attention.mla_prefill_backend()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return COMMUNICATOR

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Registers Anvil's implementations of IR ops besides the engine's."""
        super().import_ir_kernels()
        import vllm_anvil.plugin.ir_kernels  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """Anvil's implementations, then plain torch. The engine's own kernels are what the path is
        compared with, and not used in it unless the user prefers them."""
        from vllm.config.kernel import IrOpPriorityConfig

        return IrOpPriorityConfig.with_default(
            ["native"], rms_norm=["anvil", "native"], fused_add_rms_norm=["anvil", "native"]
        )

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """False: steps are not captured; vLLM sets `cudagraph_mode` to NONE."""
        return False

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """False: sums over ranks are NCCL's."""
        return False


def _require_cuda() -> None:
    """Raises RuntimeError unless CUDA is what torch means by its accelerator in this process."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "cuda":
        return
    if accelerator is None:
        raise RuntimeError(
            f"ANVIL_TARGET=cuda: torch {torch.__version__} finds no CUDA GPU. See what nvidia-smi "
            "and CUDA_VISIBLE_DEVICES say, and that torch is a build for CUDA."
        )
    raise RuntimeError(
        f"ANVIL_TARGET=cuda: torch's accelerator in this process is {accelerator.type}, not CUDA. "
        "Unset ANVIL_AUTOLOAD, and import no package that registers another device."
    )
