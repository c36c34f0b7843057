# SPDX-License-Identifier: Apache-2.0
"""vLLM's modules as they are for a device with Triton."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from unittest import mock

from vllm.platforms import current_platform


def wrappers(name: str) -> ModuleType:
    """A second instance of module `name`, whose functions launch its Triton kernels.

    Some modules put C++ versions in those functions' place when the platform is the CPU.
    """
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(type(current_platform), "is_cpu", lambda _: False):
        spec.loader.exec_module(module)
    return module
