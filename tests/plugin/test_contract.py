# SPDX-License-Identifier: Apache-2.0
"""Every member that vLLM may call is overridden, or inherited on purpose with the reason here.

A vLLM release that adds, removes or re-shapes a member fails these tests, and so says what it
wants.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import interface
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import WorkerBase

from vllm_anvil.plugin.model_runner import AnvilModelRunner, AnvilModelRunnerV1
from vllm_anvil.plugin.platform import AnvilPlatform
from vllm_anvil.plugin.recording_worker import RecordingWorker
from vllm_anvil.plugin.worker import AnvilWorker

GPU_ONLY = "concerns GPUs; the base class's answer (absent, False) is right"
NOT_ASKED = "serves a feature that engine_config refuses, so it is never called"
ENGINE = "the engine's own logic, right on any device"

PLATFORM_INHERITED_ON_PURPOSE = {
    # Questions about what kind of platform it is, answered from `_enum`.
    "is_cuda": ENGINE,
    "is_rocm": ENGINE,
    "is_tpu": ENGINE,
    "is_xpu": ENGINE,
    "is_cpu": ENGINE,
    "is_out_of_tree": ENGINE,
    "is_unspecified": ENGINE,
    "is_cuda_alike": ENGINE,
    "is_zen_cpu": GPU_ONLY,
    "uses_host_device_handling": "False: tensors are placed on the device, not on the host",
    "get_cpu_architecture": ENGINE,
    # Numbering of devices: the base class maps logical, visible and physical indices through
    # `device_control_env_var`.
    "device_control_id_to_physical_device_id": ENGINE,
    "device_id_to_physical_device_id": ENGINE,
    "logical_device_id_to_visible_device_id": ENGINE,
    "visible_device_id_to_physical_device_id": ENGINE,
    # Ray.
    "ray_noset_device_env_vars": "none: Ray sets no variable for a resource that it does not know",
    "additional_env_vars": "asked by the former Ray executor, which is refused",
    # Compilation and graphs: nothing is compiled or captured.
    "pass_key": NOT_ASKED,
    "get_pass_manager_cls": NOT_ASKED,
    "get_compile_backend": "simple_compile_backend, which is overridden",
    "_global_graph_pool": NOT_ASKED,
    "get_global_graph_pool": NOT_ASKED,
    "get_static_graph_wrapper_cls": NOT_ASKED,
    # Capabilities are numbers that NVIDIA gives its GPUs.
    "get_device_capability": GPU_ONLY,
    "has_device_capability": GPU_ONLY,
    "is_device_capability": GPU_ONLY,
    "is_device_capability_family": GPU_ONLY,
    "get_all_gpu_pci_bus_ids": GPU_ONLY,
    "is_arch_support_pdl": GPU_ONLY,
    "enable_multi_stream_overlap": "False: the device runs one command at a time",
    # Number formats.
    "supports_mx": GPU_ONLY,
    "supports_fp8": "False: the device has no fp8 kernels",
    "is_fp8_fnuz": GPU_ONLY,
    "fp8_dtype": NOT_ASKED,
    "get_infinity_values": ENGINE,
    "support_deep_gemm": GPU_ONLY,
    "supported_quantization": "empty means no limit to the base class; verify_quantization is ours",
    # Attention.
    "get_supported_vit_attn_backends": "TORCH_SDPA, which runs on the device",
    "get_vit_attn_backend": "TORCH_SDPA, which runs on the device",
    # KV cache: block sizes come from the attention backend.
    "update_block_size_for_backend": ENGINE,
    "_find_non_ssm_backends": ENGINE,
    "_preferred_block_size_for_backends": ENGINE,
    "_check_aligned_block_size": ENGINE,
    "_align_heterogeneous_kv_block_size": ENGINE,
    "_align_hybrid_block_size": NOT_ASKED,
    "register_custom_kv_cache_specs": "the engine's specs describe our cache",
    # Communication goes through our communicator.
    "use_all_gather": "True: logits are gathered on every rank",
    "use_custom_allreduce": GPU_ONLY,
    "use_custom_op_collectives": "False: collectives are called directly, as nothing is compiled",
    "stateless_init_device_torch_dist_pg": "asked for other backends than gloo only",
    "get_nixl_supported_devices": NOT_ASKED,
    "get_nixl_memory_type": NOT_ASKED,
    # Models, requests, defaults.
    "get_max_output_tokens": ENGINE,
    "check_max_model_len": "any length that fits the KV cache",
    "verify_model_arch": "what a model needs is checked by its layers, not by its name",
    "validate_request": "every request that the engine accepts is served",
    "set_additional_forward_context": "the forward context needs nothing of ours",
    "can_update_inplace": ENGINE,
    "inference_mode": "torch.inference_mode works on the device",
    "use_sync_weight_loader": "False: copies to the device are complete when they return",
    "make_synced_weight_loader": ENGINE,
    "log_warnings": "validate_environ and the constructor say what there is to say",
}

RUNNER = "passes the call to the model runner"
TRANSFER = "calls the backend, which is ours: plugin/weight_transfer.py"
REFUSED = "serves a feature that engine_config refuses, so it is never called"
SLEEP = "the engine's part of sleep mode; what frees memory is plugin/sleep_mode.py"

WORKER_INHERITED_ON_PURPOSE = {
    # The model's life.
    "get_model": RUNNER,
    "get_draft_model": RUNNER,
    "get_model_inspection": ENGINE,
    "apply_model": ENGINE,
    "update_config": ENGINE,
    "_weight_checksum_prefix": ENGINE,
    "vocab_size": ENGINE,
    "_scoped_allocator_max_split": GPU_ONLY,
    # The KV cache and its size: measured through torch.accelerator, which is ours.
    "get_kv_cache_spec": RUNNER,
    "initialize_from_config": "allocates under the tag kv_cache",
    "get_supported_kv_cache_layouts": "asks the attention backend",
    "set_kv_cache_layout": ENGINE,
    "update_max_model_len": RUNNER,
    "get_cache_block_size_bytes": "neither the engine's worker nor the engine uses it",
    # Running.
    "_maybe_activate_jit_monitor": "switched off in engine_config",
    "_get_cudagraph_capture_context": "no profiler unless one is configured",
    "_init_workspace_and_model_runner": "calls our _make_model_runner",
    "randomize_dummy_inputs": ENGINE,
    "annotate_profile": ENGINE,
    "synchronize_device": "torch.accelerator.synchronize, which is ours",
    "take_draft_token_ids": RUNNER,
    "get_supported_tasks": RUNNER,
    "get_encoder_timing_stats": RUNNER,
    "get_compilation_match_table": ENGINE,
    "reset_mm_cache": RUNNER,
    "reset_encoder_cache": RUNNER,
    "release_late_interaction_query_cache": RUNNER,
    "add_lora": RUNNER,
    "remove_lora": RUNNER,
    "pin_lora": RUNNER,
    "list_loras": RUNNER,
    # Features that are refused.
    "sleep": SLEEP,
    "wake_up": SLEEP,
    "discard": SLEEP,
    "sleep_mode_backend": SLEEP,
    "_get_sleep_parameters": SLEEP,
    "_save_sleep_parameters": SLEEP,
    "_restore_sleep_parameters": SLEEP,
    "supports_draft_weight_updates": TRANSFER,
    "_set_draft_weight_update_target": TRANSFER,
    "_check_weight_transfer_engine": TRANSFER,
    "init_weight_transfer_engine": TRANSFER,
    "shutdown_weight_transfer_engine": TRANSFER,
    "start_weight_update": TRANSFER,
    "start_draft_weight_update": TRANSFER,
    "_start_weight_update": TRANSFER,
    "update_weights": TRANSFER,
    "finish_weight_update": TRANSFER,
    "get_kv_connector_handshake_metadata": REFUSED,
    "elastic_ep_execute": REFUSED,
    "handle_ft_command": "raises without --enable-fault-tolerance",
    "checkpoint_prepare": ENGINE,
    "checkpoint_restore": ENGINE,
}


def members(*classes: type) -> set[str]:
    """Names that the classes define themselves, dunder names excepted."""
    return {
        name
        for cls in classes
        for name in [*vars(cls), *vars(cls).get("__annotations__", {})]
        if not (name.startswith("__") and name.endswith("__"))
    }


@pytest.mark.parametrize(
    ("ours", "bases", "inherited"),
    [
        ((AnvilPlatform,), (interface.Platform,), PLATFORM_INHERITED_ON_PURPOSE),
        ((AnvilWorker, RecordingWorker), (WorkerBase, Worker), WORKER_INHERITED_ON_PURPOSE),
    ],
    ids=["platform", "worker"],
)
def test_every_member_is_decided_on(
    ours: tuple[type, ...], bases: tuple[type, ...], inherited: dict[str, str]
) -> None:
    offered, overridden = members(*bases), members(*ours)
    assert offered - overridden - set(inherited) == set(), "new in vLLM: override or list"
    assert set(inherited) - offered == set(), "gone from vLLM: remove from the table"
    assert set(inherited) & overridden == set(), "overridden now: remove from the table"


def test_document_names_what_the_worker_has() -> None:
    """vLLM's plugin document lists these; some it spells differently from the engine."""
    names = """
        init_device initialize_cache load_model get_kv_cache_spec determine_available_memory
        initialize_from_config execute_model sleep wakeup wake_up compile_or_warm_up_model
        take_draft_token_ids add_lora remove_lora list_loras pin_lora execute_dummy_batch
        sample_tokens get_supported_kv_cache_layouts set_kv_cache_layout get_supported_tasks
        update_max_model_len reset_encoder_cache check_health shutdown
    """
    for name in names.split():
        assert callable(getattr(AnvilWorker, name)), name


def test_deprecated_members_are_gone() -> None:
    assert not hasattr(AnvilPlatform, "seed_everything")
    assert "use_v1" not in inspect.signature(AnvilPlatform.get_attn_backend_cls).parameters
    assert "prompt" not in inspect.signature(AnvilPlatform.validate_request).parameters


def test_deprecated_lookups_do_not_break_an_instance(platform: AnvilPlatform) -> None:
    # vLLM's __getattr__ answers None for what a platform lacks; code that probes relies on it.
    assert platform.seed_everything is None


SNAPSHOT = Path(__file__).with_name("signatures.json")
# What we override or forward to, whose shape must be what this version of the plugin expects.
SIGNATURES: dict[str, type] = {
    "Platform": interface.Platform,
    "WorkerBase": WorkerBase,
    "Worker": Worker,
}


def parameters(function: Any) -> str:
    """The parameters' names, kinds and whether they have defaults; annotations do not matter."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "not a function"
    parts = []
    for parameter in signature.parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        only = "keyword " if parameter.kind is parameter.KEYWORD_ONLY else ""
        default = "" if parameter.default is parameter.empty else "=..."
        parts.append(f"{only}{star}{parameter.name}{default}")
    return ", ".join(parts)


def snapshot() -> dict[str, dict[str, str]]:
    return {
        label: {
            name: parameters(getattr(cls, name))
            for name in sorted(members(cls))
            if callable(getattr(cls, name, None))
        }
        for label, cls in SIGNATURES.items()
    }


def test_signatures_are_those_this_version_was_written_for() -> None:
    """When it fails: read what changed in vLLM, adapt, then `python tests/plugin/test_contract.py`
    writes the new snapshot."""
    expected = json.loads(SNAPSHOT.read_text())
    assert snapshot() == expected


def accepts_all_of(override: Any, original: Any) -> Iterable[str]:
    """Parameters of `original` that `override` would reject."""
    ours = inspect.signature(override).parameters
    if any(p.kind is p.VAR_KEYWORD for p in ours.values()):
        return []
    return [name for name in inspect.signature(original).parameters if name not in ours]


@pytest.mark.parametrize(
    ("ours", "base"),
    [(AnvilPlatform, interface.Platform), (AnvilWorker, Worker), (AnvilWorker, WorkerBase)],
)
def test_overrides_accept_every_parameter_of_the_original(ours: type, base: type) -> None:
    constructor = {"__init__"} if ours is AnvilWorker else set()
    for name in members(ours) & members(base) | constructor:
        original = getattr(base, name, None)
        if callable(original):
            rejected = list(accepts_all_of(getattr(ours, name), original))
            assert rejected == [], f"{ours.__name__}.{name}"


RUNNER_OVERRIDES = {"load_model", "profile_run", "prepare_inputs", "_set_active_loras"}


@pytest.mark.parametrize("runner", [AnvilModelRunner, AnvilModelRunnerV1])
def test_runners_leave_the_engines_steps_alone(runner: type) -> None:
    """What they override calls the engine's own; a step's loop is never ours."""
    assert members(runner) <= RUNNER_OVERRIDES
    for name in members(runner):
        assert f"super().{name}(" in inspect.getsource(getattr(runner, name))


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(snapshot(), indent=1, sort_keys=True) + "\n")
