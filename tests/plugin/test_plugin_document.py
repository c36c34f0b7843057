# SPDX-License-Identifier: Apache-2.0
"""What vLLM's plugin document asks of a platform plugin, as far as it is about this package.

Members of the platform and the worker are checked in test_contract.py, sleep in test_engine.py.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import vllm_anvil

PLATFORM = "vllm_anvil.plugin.platform.AnvilPlatform"


def test_entry_point_of_the_group() -> None:
    found = [e for e in entry_points(group="vllm.platform_plugins") if e.name == "anvil"]
    assert [e.value for e in found] == ["vllm_anvil:register"]
    assert found[0].load() is vllm_anvil.register


def test_register_may_be_called_again() -> None:
    assert [vllm_anvil.register() for _ in range(3)] == [PLATFORM] * 3


def test_none_where_the_platform_is_not_wanted(monkeypatch: Any) -> None:
    monkeypatch.setenv("ANVIL_TARGET", "off")
    assert vllm_anvil.register() is None


def test_vllm_plugins_filters_platforms_too(python: Any) -> None:
    code = "from vllm.platforms import current_platform; print(type(current_platform).__name__)"
    assert python(code, VLLM_PLUGINS="anvil").stdout.strip().endswith("AnvilPlatform")
    other = python(code, VLLM_PLUGINS="another")
    assert other.returncode == 0, other.stderr
    assert "AnvilPlatform" not in other.stdout


def test_general_plugins_load_twice(python: Any) -> None:
    """vLLM loads them in every process and sometimes more than once in one."""
    result = python(
        """
import vllm.plugins
vllm.plugins.load_general_plugins()
vllm.plugins.plugins_loaded = False
vllm.plugins.load_general_plugins()
from vllm.platforms import current_platform
assert current_platform.device_type == "anvil"
"""
    )
    assert result.returncode == 0, result.stderr
