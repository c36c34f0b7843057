# SPDX-License-Identifier: Apache-2.0
"""Installed is not in use: what torch, Triton and the engine are like without Anvil as platform.

The measure is a process in which no code of Anvil runs at all: no plugin is allowed, and torch's
loading of backends is off.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("installed")

OBSERVE = """
    import json, logging, os, sys
    environment = dict(os.environ)
    import torch
    from vllm.platforms import current_platform
    import vllm.plugins
    vllm.plugins.load_general_plugins()
    import triton.backends
    from vllm.config import VllmConfig
    from vllm.triton_utils import HAS_TRITON
    config = VllmConfig()
    accelerator = torch.accelerator.current_accelerator()
    changed = {
        k: [environment.get(k), os.environ.get(k)]
        for k in environment | os.environ
        if environment.get(k) != os.environ.get(k)
    }
    print(json.dumps({
        "platform": type(current_platform).__qualname__,
        "device_type": current_platform.device_type,
        "backend": torch._C._get_privateuse1_backend_name(),
        "accelerator": accelerator and str(accelerator),
        "torch_has_anvil": hasattr(torch, "anvil"),
        "threads": torch.get_num_threads(),
        "triton_backends": sorted(triton.backends.backends),
        "has_triton": HAS_TRITON,
        "v2_runner": config.use_v2_model_runner,
        "worker": config.parallel_config.worker_cls,
        "block_size": config.cache_config.block_size,
        "compilation": str(config.compilation_config.mode),
        "changed_environment": changed,
        "operators": sorted(n for n in dir(torch.ops) if "anvil" in n),
        "modules": sorted(m for m in sys.modules if "anvil" in m),
    }))
"""
# What register() and notice() may bring in: the entry points and the logic, nothing else.
ALLOWED = {
    "vllm_anvil",
    "vllm_anvil._build_info",
    "vllm_anvil.env_values",
    "vllm_anvil.envs",
    "vllm_anvil.selection",
    "vllm_anvil_autoload",
}


@pytest.fixture(scope="module")
def without(run_json) -> dict[str, Any]:
    found = run_json(OBSERVE, VLLM_PLUGINS="", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert found.pop("modules") == []
    return found


@pytest.mark.parametrize("variable", [("ANVIL_TARGET", "off"), ("VLLM_TARGET_DEVICE", "cpu")])
def test_engine_is_as_without_the_package(
    run_json, without: dict[str, Any], variable: tuple[str, str]
) -> None:
    found = run_json(OBSERVE, **dict([variable]))
    assert set(found.pop("modules")) <= ALLOWED
    assert found == without
    assert found["backend"] == "privateuseone"
    assert found["accelerator"] is None


def test_importing_torch_and_triton_loads_nothing(run_json) -> None:
    code = """
        import json, sys, torch, triton.backends
        print(json.dumps({
            "backend": torch._C._get_privateuse1_backend_name(),
            "accelerator": torch.accelerator.is_available(),
            "modules": sorted(m for m in sys.modules if "anvil" in m),
        }))
    """
    found = run_json(code)
    assert set(found.pop("modules")) <= ALLOWED
    assert found == {"backend": "privateuseone", "accelerator": False}
