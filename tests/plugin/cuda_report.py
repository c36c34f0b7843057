# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM choose the CUDA reference path on a machine without a GPU, and prints what it finds.

Run by test_cuda_platform.py in a subprocess: `python cuda_report.py MODEL`. The engine is the CPU
build, whose package holds the CUDA platform as well. What only a GPU or a CUDA build has is stood
in for: compiled libraries, the device's files, and torch's answers about the device. All else is
real: the plugin's answer, the platform's class, configuration, layers, attention.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from typing import Any

import torch
import triton.backends
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_anvil import selection

CAPABILITY = (9, 0)


def stand_in(accelerator: str | None = "cuda") -> None:
    """What a GPU and a CUDA build have; `accelerator` is what torch has, None: what it has here."""
    for library in ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa2_C"):
        sys.modules[library] = types.ModuleType(library)
    # Otherwise the engine would do without Triton, and its modules for GPUs do not import then.
    nvidia = triton.backends.backends["nvidia"].driver
    nvidia.is_active = staticmethod(lambda: True)  # type: ignore[method-assign]
    selection.nvidia_gpu = lambda root="/": "/dev/nvidia0"  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    torch.cuda.device_count = lambda: 1
    if accelerator is not None:
        torch.accelerator.current_accelerator = lambda check_available=False: torch.device(
            accelerator
        )


def stand_in_for_questions() -> None:
    """The engine asks its CUDA library while its layers are imported: it can do nothing."""
    from vllm import _custom_ops

    for name in vars(_custom_ops).copy():
        if "_supports_" in name or name.endswith("_supported"):
            setattr(_custom_ops, name, lambda *_: False)


def describe(platform: Any, config: Any) -> dict[str, Any]:
    """The classes that run, and what the configuration became."""
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
    from vllm.platforms.cuda import CudaPlatform
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.gpu_worker import Worker

    worker = resolve_obj_by_qualname(config.parallel_config.worker_cls)
    communicator = resolve_obj_by_qualname(platform.get_device_communicator_cls())
    return {
        "class": type(platform).__qualname__,
        "derived": [
            issubclass(type(platform), CudaPlatform),
            issubclass(worker, Worker) and worker is not Worker,
            issubclass(communicator, CudaCommunicator) and communicator is not CudaCommunicator,
        ],
        "is_cuda": [platform.is_cuda(), platform.is_cuda_alike(), platform.is_out_of_tree()],
        "device": str(config.device_config.device),
        "worker": worker.__name__,
        "mode": config.compilation_config.mode.name,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "attention": os.environ["ANVIL_ATTENTION_IMPL"],
        "ir": config.kernel_config.ir_op_priority.rms_norm,
        "custom_all_reduce": not config.parallel_config.disable_custom_all_reduce,
        "loaded": sorted(
            m for m in sys.modules if m in ("vllm_anvil.device", "vllm_anvil._C", "vllm._C")
        ),
        "privateuse1": torch._C._get_privateuse1_backend_name(),
    }


def changed_signatures() -> list[str]:
    """Members that the platform overrides and that the engine has no longer, or calls otherwise."""
    from vllm.platforms.cuda import CudaPlatform

    from vllm_anvil.plugin.cuda_platform import AnvilCudaPlatform

    found = []
    for name, member in vars(AnvilCudaPlatform).items():
        if name.startswith("__"):
            continue
        base = inspect.getattr_static(CudaPlatform, name, None)
        if base is None:
            found.append(f"{name} is not the engine's")
        elif isinstance(member, classmethod):
            ours, theirs = (list(inspect.signature(m.__func__).parameters) for m in (member, base))
            if ours != theirs:
                found.append(f"{name}: {ours} instead of {theirs}")
    return found


def attention_paths(platform: Any) -> dict[str, str]:
    """What is answered for a plain layer, and for some that are refused."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    def ask(selected: str | None, **asked: Any) -> str:
        layer: dict[str, Any] = {
            "head_size": 64,
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "auto",
            "block_size": None,
        }
        backend = None if selected is None else AttentionBackendEnum[selected]
        try:
            return platform.get_attn_backend_cls(
                backend, AttentionSelectorConfig(**layer | asked), num_heads=8
            )
        except ValueError as error:
            return f"refused: {error}"

    return {
        "plain": ask(None),
        "by name": ask("ANVIL_ATTN"),
        "another": ask("FLASH_ATTN"),
        "mla": ask(None, use_mla=True),
        "sparse": ask(None, use_mla=True, use_sparse=True),
    }


class _Seen(TorchDispatchMode):
    """The names of Anvil's ops that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "anvil":
            self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def layers(config: Any) -> dict[str, Any]:
    """Which RMSNorm the engine builds here, and how far its result is from float64's."""
    from vllm.config import set_current_vllm_config
    from vllm.ir.op import enable_torch_wrap
    from vllm.model_executor.layers.layernorm import LayerNorm, RMSNorm

    from vllm_anvil.plugin import cuda_layers, op_arguments
    from vllm_anvil.references.norm import rms_norm

    cuda_layers.register()
    cuda_layers.register()
    on = sorted(op_arguments.DEVICES)
    op_arguments.DEVICES.add("cpu")  # where the tensors are, for want of a GPU
    with set_current_vllm_config(config):
        layer = RMSNorm(64, eps=1e-5)
        layer_norm = LayerNorm(64)
    layer.weight.data.copy_(torch.linspace(0.5, 1.5, 64))
    x = torch.randn(3, 64)
    expected = rms_norm(x.double(), layer.weight.double(), 1e-5)
    priority = config.kernel_config.ir_op_priority.set_priority()
    # Wrapped in an op of the engine's, the call of ours would not be seen.
    with priority, enable_torch_wrap(False), _Seen() as seen:
        layer(x)
        layer_norm(x)
    return {
        "devices": on,
        "ops": sorted(seen.names),
        "class": type(layer).__name__,
        "runs": layer._forward_method.__func__ is type(layer).forward_oot,
        "error": float((layer(x) - expected).abs().max()),
        "names": sorted(one.__name__ for one in cuda_layers.registered()),
    }


def attend() -> float:
    """Error of one decode step of the backend's implementation, whose cache has been written by it
    before, with a padded slot."""
    from anvil_attention.impl import AnvilAttentionImpl
    from anvil_attention.metadata import AnvilAttentionMetadata

    length, size, block_size = 5, 32, 4
    impl = AnvilAttentionImpl(num_heads=4, head_size=size, scale=0.25, num_kv_heads=2)
    cache = torch.zeros(6, 2, block_size, 2 * size)
    key, value = torch.randn(length + 1, 2, size), torch.randn(length + 1, 2, size)
    table = torch.tensor([[4, 1]], dtype=torch.int32)
    slots = [int(table[0, t // block_size]) * block_size + t % block_size for t in range(length)]
    slot_mapping = torch.tensor([*slots, -1])
    impl.do_kv_cache_update(torch.nn.Module(), key, value, cache, slot_mapping)
    query = torch.randn(1, 4, size)
    output = torch.empty(1, 4, size)
    metadata = AnvilAttentionMetadata(
        num_actual_tokens=1,
        max_query_len=1,
        max_seq_len=length,
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=table,
        slot_mapping=slot_mapping[:1],
        causal=True,
        query_start_loc_cpu=torch.tensor([0, 1]),
        seq_lens_cpu=torch.tensor([length]),
    )
    impl.forward(torch.nn.Module(), query, None, None, cache, metadata, output)
    keys, values = (t[:length].repeat_interleave(2, dim=1).double() for t in (key, value))
    weights = torch.softmax(torch.einsum("qhd,khd->hqk", query.double(), keys) * 0.25, dim=-1)
    expected = torch.einsum("hqk,khd->qhd", weights, values)
    return float((output - expected).abs().max())


def refusals(model: str) -> dict[str, str]:
    """What is said to options that the path refuses."""
    from vllm.engine.arg_utils import EngineArgs

    asked: dict[str, dict[str, Any]] = {
        "--enable-lora": {"enable_lora": True},
        "--kv-cache-dtype": {"kv_cache_dtype": "int8_per_token_head"},
        "--kv-offloading-size": {"kv_offloading_size": 1.0},
        "--speculative-config": {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}
        },
    }
    said = {}
    for option, arguments in asked.items():
        try:
            EngineArgs(model=model, **arguments).create_engine_config()
            said[option] = "was accepted"
        except ValueError as error:
            said[option] = str(error)
    return said


def obstacles() -> dict[str, str]:
    """What the platform says when it cannot be constructed."""
    from vllm_anvil.plugin.cuda_platform import AnvilCudaPlatform

    def attempt() -> str:
        try:
            AnvilCudaPlatform()
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "was constructed"

    answer = torch.accelerator.current_accelerator
    said = {"none": attempt()}
    os.environ["ANVIL_DEVICES"] = "0"
    said["variable"] = attempt()
    del os.environ["ANVIL_DEVICES"]
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("xpu")
    said["another accelerator"] = attempt()
    torch.accelerator.current_accelerator = lambda check_available=False: None
    said["no GPU"] = attempt()
    torch.accelerator.current_accelerator = answer
    return said


def main(model: str) -> dict[str, Any]:
    torch.manual_seed(0)
    stand_in()
    from vllm.platforms import current_platform

    platform = current_platform
    stand_in_for_questions()
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(model=model, compilation_config={"mode": 3}).create_engine_config()
    return {
        "found": describe(platform, config),
        "signatures": changed_signatures(),
        "attention": attention_paths(platform),
        "layers": layers(config),
        "attention_error": attend(),
        "refused": refusals(model),
        "obstacles": obstacles(),
        "loaded": [m for m in ("vllm_anvil.device", "vllm_anvil._C") if m in sys.modules],
    }


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(sys.argv[1])))
