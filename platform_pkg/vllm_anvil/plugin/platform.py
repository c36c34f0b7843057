# SPDX-License-Identifier: Apache-2.0
"""The platform that vLLM asks about everything that depends on the device.

vLLM imports this module while it is itself being imported, and constructs the class once per
process. So nothing of `vllm.config` or `vllm.v1.attention.backend` is imported at the top (that
would be circular), and importing the module changes nothing: constructing the platform is what
checks the environment and registers the device.
"""

from __future__ import annotations

import platform as host
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_anvil import envs
from vllm_anvil.plugin import attention, orphans, seams, start_method
from vllm_anvil.plugin.ray_cluster import RESOURCE as RAY_RESOURCE

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
    from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

logger = init_logger("vllm.plugins.anvil.platform")

COMMUNICATOR = "anvil_communicator.communicator.AnvilCommunicator"
WORKER = "vllm_anvil.plugin.worker.AnvilWorker"


class AnvilPlatform(Platform):
    """The host's cores and memory as a device of vLLM.

    Constructing it raises, with one message, when an ANVIL_* variable cannot be used or the device
    cannot be brought up; vLLM then has no platform at all instead of half of one.
    """

    _enum = PlatformEnum.OOT
    device_name = "anvil"
    device_type = "anvil"
    dispatch_key = "PrivateUse1"
    dist_backend = "cpu:gloo,anvil:anvil"
    device_control_env_var = "ANVIL_VISIBLE_DEVICES"
    ray_device_key = RAY_RESOURCE
    # Inductor knows no code generator for the device.
    simple_compile_backend = "eager"

    def __init__(self) -> None:
        envs.validate()
        anvil = _anvil()
        # Reads the configuration and plans the devices, so that what cannot work is said now and
        # not after a model was loaded.
        anvil.get_device_properties(0)
        anvil.active_isa()
        _activate_triton()
        seams.apply(seams.EVERY_PROCESS)
        attention.register()
        start_method.prepare()
        orphans.watch()

    # ------------------------------------------------------------------ configuration

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        """Called before a configuration is made, with the command line's parser or without."""
        seams.apply(seams.CONFIGURATION)

    @classmethod
    def prepare_engine(cls) -> None:
        """Called in each process that configures or runs an engine, by `vllm_anvil.notice`. Ours,
        not vLLM's."""
        seams.apply(seams.ENGINE)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        from vllm_anvil.plugin import engine_config

        engine_config.apply_defaults(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Sets the worker and what the device decides; refuses, by name, what it cannot do."""
        from vllm_anvil.plugin import engine_config

        engine_config.refuse_unsupported(vllm_config)
        engine_config.update(vllm_config, worker_cls=WORKER)

    @classmethod
    def validate_environ(cls, hard_fail: bool) -> None:
        """vLLM's check of VLLM_* names, and the same for ANVIL_*."""
        super().validate_environ(hard_fail)
        for message in envs.unknown_messages():
            if hard_fail:
                raise ValueError(message)
            logger.warning("%s", message)

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Refuses vLLM's own methods, whose kernels the device does not have; a method that
        another package registered is that package's business."""
        from typing import get_args

        from vllm.model_executor.layers.quantization import QuantizationMethods

        if quant in get_args(QuantizationMethods):
            raise ValueError(
                f"--quantization {quant} is not supported on the anvil platform: the device has "
                "no kernels for quantised weights. Use a checkpoint in bfloat16, float16 or "
                "float32."
            )

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        # The first is what "auto" falls back to.
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        supported = (torch.bfloat16, torch.float16, torch.float32)
        if dtype not in supported:
            names = ", ".join(str(d).removeprefix("torch.") for d in supported)
            raise ValueError(
                f"--dtype {str(dtype).removeprefix('torch.')} is not supported on the anvil "
                f"platform. Choose one of {names}."
            )

    @classmethod
    def hidden_state_dtypes(cls, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """What dtypes the hidden states of a model in `dtype` may have: `precision` widens those
        of half-precision models where it can. Ours, not vLLM's."""
        return (dtype, torch.float32) if dtype.itemsize == 2 else (dtype,)

    # ------------------------------------------------------------------ what runs on the device

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """Path of the attention backend. Raises ValueError, with the reasons, for a selection or
        an attention that it does not serve."""
        return attention.choose(selected_backend, attn_selector_config)

    @classmethod
    def get_mla_prefill_backend_cls(
        cls, mla_selector_config: MLAPrefillSelectorConfig
    ) -> type[MLAPrefillBackend]:
        """What the layer for multi-head latent attention holds besides its backend."""
        return attention.mla_prefill_backend()

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """Path of the class that adapters' layers call."""
        return "vllm_anvil.plugin.lora.wrapper.AnvilPunicaWrapper"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return COMMUNICATOR

    @classmethod
    def import_kernels(cls) -> None:
        """Loads the engine's CPU kernels where this build of it has some: on the device they run
        through the zero-copy fallback. A CUDA build's kernels are of no use here."""
        from vllm.platforms import vllm_version_matches_substr

        if vllm_version_matches_substr("cpu"):
            from vllm.platforms.cpu import CpuPlatform

            CpuPlatform.import_kernels()

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Registers the device's implementations of IR ops; those in `vllm.kernels` are for
        GPUs."""
        import vllm_anvil.plugin.ir_kernels  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """The device's implementation of the ops that have one, then the engine's own. What the
        user prefers goes before these."""
        from vllm.config.kernel import IrOpPriorityConfig

        return IrOpPriorityConfig.with_default(
            ["native"], rms_norm=["anvil", "native"], fused_add_rms_norm=["anvil", "native"]
        )

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm_anvil.plugin import triton_overrides

        triton_overrides.register()

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """False: nothing is compiled, so the attention layer calls its backend directly, which
        saves two dispatches a layer."""
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """True: full and sliding-window layers may have KV caches of their own."""
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """True: steps are recorded into the device's graphs, see plugin/graph_config.py."""
        return True

    @classmethod
    def graph_pool_handle(cls) -> Any:
        """An id for graphs that share their memory."""
        return _anvil().graph_pool_handle()

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Layers that share an index each keep a cache of their own on this device."""

    def is_sleep_mode_available(self) -> bool:
        return True

    def is_cumem_allocator_available(self) -> bool:
        # The engine asks whether `cumem` imports; in a CUDA build it may, and serves no purpose.
        return False

    # ------------------------------------------------------------------ the device

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return _anvil().get_device_name(device_id)

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Stable over processes on a host, different for each device and host."""
        index = _anvil().get_device_properties(device_id).physical_index
        return f"ANVIL-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.anvil.{host.node()}')}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes that the device may hand out."""
        return _anvil().get_device_properties(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        """Bytes held by tensors on `device` (default: the current one)."""
        return float(_anvil().memory_allocated(device))

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return True

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        """False, although memory is shared with the host: True would make vLLM read the host's
        free memory instead of the device's."""
        return False

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Cores of the device."""
        return len(_anvil().get_device_properties(device_id).cores)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        _anvil().set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        _anvil().manual_seed_all(seed)

    @classmethod
    def current_stream(cls) -> Any:
        return _anvil().current_stream()


def _anvil() -> ModuleType:
    """`torch.anvil`. Importing it registers the device, hence not at the top of this module."""
    import vllm_anvil.device

    return vllm_anvil.device


def _activate_triton() -> None:
    """Makes the device known to Triton, in time for vLLM's check whether Triton is of use: the
    check asks for the platform first. What follows from it is Model Runner V2."""
    from vllm.platforms import vllm_version_matches_substr

    from vllm_anvil import triton_backend

    # Builds for the CPU look for a backend of that name, others for any but that.
    triton_backend.activate("cpu" if vllm_version_matches_substr("cpu") else "anvil")
