# SPDX-License-Identifier: Apache-2.0
"""What the platform decides in a VllmConfig, and what it refuses.

vLLM calls `apply_defaults` before it fills in its own defaults, and `refuse_unsupported` and
`update` when the configuration is otherwise complete, all before any process is started: an
option that cannot work is refused here, by the name the user gave it, within the first seconds.
"""

from __future__ import annotations

import vllm.envs as vllm_envs
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionBackend

import vllm_anvil.device as anvil
from vllm_anvil.plugin import (
    attention,
    fit,
    graph_config,
    record_settings,
    sleep_mode,
    speculation_config,
    start_method,
    weight_reading,
    weight_transfer,
)
from vllm_anvil.plugin.refusal import Refusal, refuse
from vllm_anvil.plugin.seams.profiler_devices import ACTIVITIES


def _attention() -> type[AttentionBackend]:
    return attention.register().get_class()


def _is_mixture(config: VllmConfig) -> bool:
    return config.model_config is not None and config.model_config.is_moe


def _targets_experts(config: VllmConfig) -> bool:
    targets = config.lora_config.target_modules
    return targets is None or any("expert" in name or name in _OF_EXPERTS for name in targets)


# What adapters of experts are called in PEFT's files.
_OF_EXPERTS = frozenset({"w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"})

REFUSALS = (
    *speculation_config.REFUSALS,
    Refusal(
        "--enable-lora for the experts of a mixture",
        lambda c: c.lora_config is not None and _is_mixture(c) and _targets_experts(c),
        "adapters of experts are not computed on the device. Name the layers beside them: "
        "--lora-target-modules q_proj k_proj v_proj o_proj",
    ),
    Refusal(
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config is not None,
        "no connector moves this device's KV cache",
    ),
    Refusal(
        "--kv-offloading-size",
        lambda c: c.cache_config.kv_offloading_size is not None,
        "device memory is host memory, so there is nowhere to offload to. Raise "
        "--gpu-memory-utilization or ANVIL_DEVICE_MEMORY instead",
    ),
    Refusal(
        "--ec-transfer-config",
        lambda c: c.ec_transfer_config is not None,
        "no connector moves this device's encoder cache",
    ),
    Refusal(
        "--cpu-offload-gb",
        lambda c: c.offload_config.uva.cpu_offload_gb > 0,
        "device memory is host memory, so there is nowhere to offload to",
    ),
    Refusal(
        "--offload-group-size",
        lambda c: c.offload_config.prefetch.offload_group_size > 0,
        "device memory is host memory, so there is nowhere to offload to",
    ),
    Refusal(
        "--profiler-config.profiler",
        lambda c: c.profiler_config.profiler not in (None, "torch"),
        "this profiler sees CUDA devices only. Use torch, whose traces have the device's work",
    ),
    Refusal(
        "--profiler-config.torch_profiler_activities",
        lambda c: not {*(c.profiler_config.torch_profiler_activities or ())} <= {*ACTIVITIES},
        f"the device has no such activities. Choose from {' and '.join(ACTIVITIES)}",
    ),
    Refusal(
        "--weight-transfer-config",
        lambda c: (
            c.weight_transfer_config is not None
            and c.weight_transfer_config.backend != weight_transfer.NAME
        ),
        "the engine's own backends reach CUDA devices only. Use "
        '{"backend": "anvil"} (docs/howto/weight_updates.md)',
    ),
    Refusal(
        "--kv-cache-dtype",
        lambda c: not _attention().supports_kv_cache_dtype(c.cache_config.cache_dtype),
        "the attention backend reads no caches with scales among their elements, or with several "
        "elements in a byte. Use auto, bfloat16, float16, fp8_e4m3 or fp8_e5m2",
    ),
    Refusal(
        "--attention-config.mla_prefill_backend",
        lambda c: c.attention_config.mla_prefill_backend is not None,
        "multi-head latent attention is ANVIL_MLA's for all requests. Leave it out",
    ),
    Refusal(
        "--pipeline-parallel-size with VLLM_USE_V2_MODEL_RUNNER=0",
        lambda c: c.parallel_config.pipeline_parallel_size > 1 and not c.use_v2_model_runner,
        "Model Runner V1 decodes wrong tokens over several stages here. Unset the variable",
    ),
    Refusal(
        "--decode-context-parallel-size",
        lambda c: c.parallel_config.decode_context_parallel_size > 1,
        "the attention backend does not split a sequence over devices",
    ),
    Refusal(
        "--prefill-context-parallel-size",
        lambda c: c.parallel_config.prefill_context_parallel_size > 1,
        "the attention backend does not split a sequence over devices",
    ),
    Refusal(
        "--enable-dbo",
        lambda c: c.parallel_config.use_ubatching,
        "overlapping two half batches needs streams that run concurrently",
    ),
    Refusal(
        "--data-parallel-backend ray",
        lambda c: c.parallel_config.data_parallel_backend == "ray",
        "replicas as Ray actors are not proven on the device. Use mp",
    ),
    Refusal(
        "--data-parallel-size with --distributed-executor-backend ray",
        lambda c: c.parallel_config.use_ray and c.parallel_config.data_parallel_size > 1,
        "replicas that share a Ray cluster are not proven on the device. Start an engine for each",
    ),
    Refusal(
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0",
        lambda c: c.parallel_config.use_ray and not vllm_envs.VLLM_USE_RAY_V2_EXECUTOR_BACKEND,
        "the engine's former Ray executor passes steps on through Ray's graphs, which know no such "
        "device. Unset it",
    ),
    Refusal(
        "--moe-backend",
        lambda c: _is_mixture(c) and c.kernel_config.moe_backend != "auto",
        "the device has experts of its own. Leave it out",
    ),
    Refusal(
        "--all2all-backend",
        lambda c: _is_mixture(c) and c.parallel_config.all2all_backend != "allgather_reducescatter",
        "it reaches CUDA devices only. Use allgather_reducescatter",
    ),
    Refusal(
        "a model with recurrent state (Mamba, linear attention)",
        lambda c: (
            c.model_config is not None
            and (c.model_config.has_inner_state or c.model_config.is_hybrid)
        ),
        "state-space layers are not proven on the device yet. Use a model of attention layers",
    ),
    Refusal(
        "VLLM_BATCH_INVARIANT=1 with VLLM_USE_V2_MODEL_RUNNER=0",
        lambda c: vllm_envs.VLLM_BATCH_INVARIANT and not c.use_v2_model_runner,
        "how Model Runner V1 samples is not proven to be invariant. Unset one of them",
    ),
    Refusal(
        "VLLM_BATCH_INVARIANT=1 with --data-parallel-size for a mixture of experts",
        lambda c: (
            vllm_envs.VLLM_BATCH_INVARIANT
            and _is_mixture(c)
            and c.parallel_config.data_parallel_size > 1
        ),
        "exchanging tokens between replicas is not proven to be invariant. Start an engine for "
        "each replica",
    ),
)


def apply_defaults(config: VllmConfig) -> None:
    """Fills in what the user left open, where the engine's default would suit a GPU only."""
    graph_config.prefer(config)
    weight_reading.prefer(config)
    # Warm-ups of CuTe and FlashInfer kernels, which are not launched here, and of Triton kernels,
    # which are compiled within milliseconds when they are first launched.
    config.kernel_config.enable_jit_warmup = False
    config.kernel_config.enable_cutedsl_warmup = False
    config.kernel_config.enable_flashinfer_autotune = False
    if config.model_config is not None:
        # Whatever was asked for: the engine's own is for CUDA's allocator.
        config.model_config.sleep_mode_backend = sleep_mode.NAME


def refuse_unsupported(config: VllmConfig) -> None:
    """Raises ValueError with one line for each option that cannot work."""
    refuse(config, REFUSALS, "the anvil platform")
    if config.model_config is not None:
        from vllm_anvil.plugin.platform import AnvilPlatform

        AnvilPlatform.check_if_supports_dtype(config.model_config.dtype)
    _check_device_count(config)
    if config.model_config is not None:
        attention.check_implementation(config)
        record_settings.folder_from_environment()
    fit.check(config)


def _check_device_count(config: VllmConfig) -> None:
    """Every rank on this host needs a device of its own."""
    parallel = config.parallel_config
    if parallel.use_ray:
        return  # the cluster's devices count: see `ray_cluster`
    assigned = parallel.assigned_physical_gpu_ids
    if assigned is None:
        needed = parallel.local_world_size * max(1, parallel.data_parallel_size_local)
        present = anvil.device_count()
    else:
        # --device-ids, or the slice that a data-parallel replica was given.
        needed, present = parallel.local_world_size, len(assigned)
    if needed > present:
        raise ValueError(
            f"--tensor-parallel-size {parallel.tensor_parallel_size}, --pipeline-parallel-size "
            f"{parallel.pipeline_parallel_size} and --data-parallel-size "
            f"{parallel.data_parallel_size} need {needed} anvil devices on this host, and "
            f"{present} {'is' if present == 1 else 'are'} visible. Set ANVIL_DEVICES={needed} to "
            "cut the host into as many."
        )


def update(config: VllmConfig, worker_cls: str) -> None:
    """Sets the worker (where the user named none) and what follows from the device."""
    parallel = config.parallel_config
    if parallel.worker_cls == "auto":
        parallel.worker_cls = worker_cls
    if parallel.distributed_executor_backend == "ray":
        from vllm_anvil.plugin.ray_executor import AnvilRayExecutor

        parallel.distributed_executor_backend = AnvilRayExecutor

    graph_config.enforce(config)

    _set_block_size(config)
    start_method.choose(with_ray=parallel.use_ray)


def _set_block_size(config: VllmConfig) -> None:
    """The attention backend's preferred KV-cache block size, or the user's when it can be used."""
    if config.model_config is None:
        return
    backend, cache = _attention(), config.cache_config
    if not cache.user_specified_block_size:
        cache.block_size = backend.get_preferred_block_size(cache.DEFAULT_BLOCK_SIZE)
    elif not backend.supports_block_size(cache.block_size):
        sizes = ", ".join(str(size) for size in backend.get_supported_kernel_block_sizes())
        raise ValueError(
            f"--block-size {cache.block_size} is not supported by {backend.get_name()}: "
            f"it accepts {sizes}."
        )
