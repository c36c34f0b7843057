# SPDX-License-Identifier: Apache-2.0
"""What doctor asks of torch and the engine; each probe runs in a child process of its own.

A broken `_C`, an engine that exits and a library that prints then cost one probe, not the report.
Run as `python -m vllm_anvil.cli.probes NAME FILE`; the answer is written to FILE as JSON. The
engine is imported by name at run time: this package is usable, and checked, without it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from vllm_anvil import envs, selection


def platform() -> dict[str, Any]:
    """The platform that vLLM selects in this environment, and the parts it names.

    `errors` maps a part that could not be had to the reason.
    """
    current = importlib.import_module("vllm.platforms").current_platform
    answer: dict[str, Any] = {
        "class": f"{type(current).__module__}.{type(current).__qualname__}",
        "device_type": current.device_type,
        "device_name": current.device_name,
    }
    errors: dict[str, str] = {}
    for name, ask in (
        ("worker", _worker),
        ("model_runner", _model_runner),
        ("attention_backend", _attention_backend),
        ("attention_implementation", _attention_implementation),
        ("communicator", lambda platform: platform.get_device_communicator_cls()),
    ):
        try:
            answer[name] = ask(current)
        except Exception as error:
            answer[name] = None
            errors[name] = _words(error)
    return answer | {"errors": errors}


def _engine_config() -> Any:
    # Constructing the configuration is what makes the platform name its worker.
    return importlib.import_module("vllm.config").VllmConfig()


def _worker(platform: Any) -> str:
    return _engine_config().parallel_config.worker_cls


def _model_runner(platform: Any) -> str:
    """The runner of the platform's worker: its class where the worker names it, and its version."""
    config = _engine_config()
    version = "Model Runner V2" if config.use_v2_model_runner else "Model Runner V1"
    module, _, name = config.parallel_config.worker_cls.rpartition(".")
    worker = getattr(importlib.import_module(module), name)
    path_of = getattr(worker, "model_runner_path", None)
    return f"{path_of(config)} ({version})" if path_of is not None else version


def _attention_backend(platform: Any) -> str:
    """The backend for a plain decoder: heads of 64, bfloat16, a KV cache of the same."""
    torch = importlib.import_module("torch")
    selector = importlib.import_module("vllm.v1.attention.selector")
    backend = _engine_config().attention_config.backend
    wanted = selector.AttentionSelectorConfig(
        head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None
    )
    return platform.get_attn_backend_cls(backend, wanted, num_heads=8)


def _attention_implementation(platform: Any) -> str | None:
    """What computes attention within Anvil's backend; None with another backend."""
    module = _attention_backend(platform).rpartition(".")[0]
    if module.partition(".")[0] != "anvil_attention":
        return None
    served = importlib.import_module("anvil_attention.serving").served()
    graphs = served.implementation.graph_support.value.replace("_", " ")
    return f"{served.name} (contract {served.implementation.version}, in graphs: {graphs})"


def device() -> dict[str, Any]:
    """The devices and instruction sets, from the device itself, whatever platform is selected."""
    importlib.import_module("vllm_anvil.device")
    anvil = importlib.import_module("torch").anvil
    devices = []
    for index in range(anvil.device_count()):
        properties = anvil.get_device_properties(index)
        free, _ = anvil.mem_get_info(index)
        devices.append(
            {
                "device": f"anvil:{index}",
                "name": properties.name,
                "cores": list(properties.cores),
                "numa_node": properties.numa_node,
                "total_memory": properties.total_memory,
                "free_memory": free,
                "physical_index": properties.physical_index,
            }
        )
    return {
        "devices": devices,
        "host_cores": envs.ANVIL_HOST_CORES,
        "isa": {"active": anvil.active_isa(), "supported": list(anvil.supported_isas())},
    }


def torchvision() -> dict[str, Any]:
    """Whether the installed torchvision, if any, fits torch: a mismatch breaks transformers."""
    version = selection.version_of("torchvision")
    problem = None
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            problem = _words(error)
        elif version is not None:
            problem = f"its metadata is there ({version}) and its module is not"
    except Exception as error:
        problem = _words(error)
    return {"version": version, "problem": problem}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "platform": platform,
    "device": device,
    "torchvision": torchvision,
}


def main(name: str, file: str) -> None:
    """Runs one probe; the file then holds its answer, or {"error": words}."""
    try:
        answer = PROBES[name]()
    except (Exception, SystemExit) as error:  # ANVIL_STRICT=1 exits
        answer = {"error": str(error) if isinstance(error, SystemExit) else _words(error)}
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
