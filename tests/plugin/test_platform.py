# SPDX-License-Identifier: Apache-2.0
"""What the platform answers about the device, and that every name it gives resolves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.platforms.interface import PlatformEnum
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

from vllm_anvil.plugin import platform as platform_module
from vllm_anvil.plugin import triton_overrides
from vllm_anvil.plugin.platform import AnvilPlatform


def layer(**asked: Any) -> AttentionSelectorConfig:
    return AttentionSelectorConfig(
        **{
            "head_size": 64,
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "auto",
            "block_size": None,
            **asked,
        }
    )


def test_what_it_is(platform: AnvilPlatform) -> None:
    assert platform._enum is PlatformEnum.OOT
    assert platform.is_out_of_tree()
    assert not platform.is_cpu()
    assert not platform.is_cuda_alike()
    assert (platform.device_name, platform.device_type) == ("anvil", "anvil")
    assert platform.dispatch_key == "PrivateUse1"
    assert platform.device_control_env_var == "ANVIL_VISIBLE_DEVICES"


def test_every_name_resolves(platform: AnvilPlatform) -> None:
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.worker.worker_base import WorkerBase

    backend = resolve_obj_by_qualname(platform.get_attn_backend_cls(None, layer()))
    assert issubclass(backend, AttentionBackend)
    assert backend.get_name() == "ANVIL_ATTN"
    communicator = resolve_obj_by_qualname(platform.get_device_communicator_cls())
    assert issubclass(communicator, DeviceCommunicatorBase)
    assert issubclass(resolve_obj_by_qualname(platform_module.WORKER), WorkerBase)


def test_backend_is_registered_under_a_name_of_its_own(platform: AnvilPlatform) -> None:
    ours = AttentionBackendEnum["ANVIL_ATTN"]
    paths = {member.value for member in AttentionBackendEnum if member is not ours}
    assert ours.get_path() not in paths
    assert platform.get_attn_backend_cls(ours, layer()) == ours.get_path()


@pytest.mark.parametrize("selected", [None, "ANVIL_ATTN", "ANVIL_MLA"])
def test_layers_of_both_kinds_get_their_backend(
    platform: AnvilPlatform, selected: str | None
) -> None:
    from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

    named = None if selected is None else AttentionBackendEnum[selected]
    for use_mla, name in ((False, "ANVIL_ATTN"), (True, "ANVIL_MLA")):
        backend = resolve_obj_by_qualname(
            platform.get_attn_backend_cls(named, layer(use_mla=use_mla))
        )
        assert backend.get_name() == name
        assert backend.is_mla() == use_mla
    assert issubclass(platform.get_mla_prefill_backend_cls(None), MLAPrefillBackend)


@pytest.mark.parametrize(
    ("selected", "asked", "said"),
    [
        ("FLASH_ATTN", {}, "--attention-backend FLASH_ATTN"),
        ("CPU_ATTN", {}, "--attention-backend CPU_ATTN"),
        ("FLASHMLA", {"use_mla": True}, "Use ANVIL_MLA, or leave the option out"),
        (None, {"use_mla": True, "kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype"),
        (None, {"use_mla": True, "use_sparse": True}, "sparse"),
        (None, {"use_sparse": True}, "sparse"),
        (None, {"kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype"),
        (None, {"dtype": torch.float64}, "dtype"),
        (None, {"use_mla": True, "use_batch_invariant": True}, "VLLM_BATCH_INVARIANT"),
    ],
)
def test_attention_that_is_refused(
    platform: AnvilPlatform, selected: str | None, asked: dict[str, Any], said: str
) -> None:
    backend = None if selected is None else AttentionBackendEnum[selected]
    with pytest.raises(ValueError, match=said):
        platform.get_attn_backend_cls(backend, layer(**asked))


def test_the_device(platform: AnvilPlatform) -> None:
    properties = torch.anvil.get_device_properties(0)
    assert platform.get_device_name() == properties.name
    assert platform.get_device_total_memory() == properties.total_memory
    assert platform.num_compute_units() == len(properties.cores)
    assert platform.get_device_uuid(0) == platform.get_device_uuid(0)
    assert platform.is_pin_memory_available()
    assert torch.empty(1, pin_memory=True).is_pinned()
    assert platform.current_stream() == torch.anvil.current_stream()


def test_memory_usage_follows_tensors(platform: AnvilPlatform) -> None:
    before = platform.get_current_memory_usage()
    tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="anvil")
    assert platform.get_current_memory_usage(tensor.device) >= before + tensor.nbytes
    del tensor
    assert platform.get_current_memory_usage() == before


def test_seed_reaches_the_device(platform: AnvilPlatform) -> None:
    platform.manual_seed_all(7)
    first = torch.rand(8, device="anvil")
    platform.manual_seed_all(7)
    assert torch.equal(first, torch.rand(8, device="anvil"))


def test_set_device(platform: AnvilPlatform) -> None:
    platform.set_device(torch.device("anvil", 0))
    assert torch.accelerator.current_device_index() == 0


def test_dtypes(platform: AnvilPlatform) -> None:
    for dtype in platform.supported_dtypes:
        platform.check_if_supports_dtype(dtype)
    for dtype in (torch.float64, torch.int8, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match="--dtype"):
            platform.check_if_supports_dtype(dtype)


def test_quantisation_of_another_package_is_its_own_business(platform: AnvilPlatform) -> None:
    platform.verify_quantization("a_method_that_vllm_does_not_have")
    with pytest.raises(ValueError, match="--quantization awq"):
        platform.verify_quantization("awq")


def test_logical_visible_and_physical_indices(
    platform: AnvilPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_VISIBLE_DEVICES", "2,0")
    assert platform.device_id_to_physical_device_id(0) == 2
    assert platform.visible_device_id_to_physical_device_id(1) == 0
    monkeypatch.setattr("vllm.platforms.interface._assigned_physical_gpu_ids", [0])
    assert platform.logical_device_id_to_visible_device_id(0) == 1


def test_native_kernels_are_installed(platform: AnvilPlatform) -> None:
    from vllm.v1.sample.ops.topk_topp_triton import _topk_topp_kernel

    platform.register_triton_kernel_overrides()
    platform.register_triton_kernel_overrides()  # a process may ask twice
    assert "run" in vars(_topk_topp_kernel)
    triton_overrides.unregister()


def test_slot_mapping_through_vllms_own_launcher(platform: AnvilPlatform) -> None:
    from vllm.v1.worker.block_table import BlockTable

    table = BlockTable(
        block_size=4,
        max_num_reqs=3,
        max_num_blocks_per_req=4,
        max_num_batched_tokens=16,
        pin_memory=True,
        device=torch.device("anvil"),
        cp_kv_cache_interleave_size=1,
    )
    table.add_row([5, 2], 0)
    table.add_row([7], 1)
    table.commit_block_table(2)
    start = torch.tensor([0, 3, 5], dtype=torch.int32, device="anvil")
    positions = torch.tensor([3, 4, 5, 0, 1], device="anvil")
    table.compute_slot_mapping(2, start, positions)
    slots = table.slot_mapping.gpu.tolist()
    assert slots[:5] == [23, 8, 9, 28, 29]
    assert set(slots[5:]) == {-1}
