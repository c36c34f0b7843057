# SPDX-License-Identifier: Apache-2.0
"""What is said of a Ray cluster that cannot serve; tests/e2e/test_ray.py asks real ones."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_anvil.plugin import ray_cluster
from vllm_anvil.plugin.ray_cluster import start_commands, too_few, unnumbered
from vllm_anvil.plugin.seams import ray_devices


def test_the_command_makes_a_cluster_that_numbers_devices() -> None:
    words = shlex.split(start_commands(3)["first host"])
    options = dict(word.split("=", 1) for word in words if "=" in word)
    assert unnumbered(json.loads(options["--system-config"])) is None
    assert json.loads(options["--resources"]) == {"ANVIL": 3}
    further = shlex.split(start_commands(2)["further hosts"])
    assert further[-1] == '--resources={"ANVIL": 2}'
    assert not any(word.startswith("--system-config") for word in further)  # Ray refuses it there


@pytest.mark.parametrize("listed", ["TPU,ANVIL,NPU", "ANVIL"])
def test_numbered_among_others(listed: str) -> None:
    assert unnumbered({"custom_unit_instance_resources": listed}) is None


@pytest.mark.parametrize("system", [{}, {"custom_unit_instance_resources": "TPU,ANVIL2"}])
def test_a_cluster_that_only_counts(system: dict[str, Any]) -> None:
    problem = unnumbered(system)
    assert problem is not None
    assert '--system-config=\'{"custom_unit_instance_resources": "ANVIL"}\'' in problem
    assert '{"ANVIL": N}' in problem


def test_too_few_devices() -> None:
    assert too_few(3, {"a": 2, "b": 1}, {"a": 2, "b": 1}) is None
    assert "has 3 (2 on a, 1 on b)" in str(too_few(4, {"b": 1, "a": 2}, {"a": 2, "b": 1}))
    assert "has 0 (none)" in str(too_few(1, {}, {}))


def test_devices_in_use() -> None:
    problem = too_few(2, {"a": 2.0, "b": 1.0}, {"a": 0.0, "b": 1.0})
    assert problem is not None
    assert "2 of 2 on a, 0 of 1 on b" in problem
    # What a host does not report is in use.
    assert "1 of 1 on b" in str(too_few(1, {"b": 1.0}, {}))


def test_places_among_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_DEVICES", "4")
    assert ray_devices.physical([2, 0]) == ["0", "2"]
    monkeypatch.setenv("ANVIL_VISIBLE_DEVICES", "3,1")
    assert ray_devices.physical([0]) == ["3"]
    assert ray_devices.physical([1]) == ["1"]
    assert ray_devices.physical([]) == []
    with pytest.raises(ValueError, match=r'device 3 of this host, which has 2.*{"ANVIL": 2}'):
        ray_devices.physical([2])


def test_resource_is_what_the_engine_asks_for(platform: Any) -> None:
    assert platform.ray_device_key == ray_cluster.RESOURCE


def test_no_cluster_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(address: str, runtime_env: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ValueError, match=r"(?s)no Ray cluster.*\n    ray start --head --system-conf"
    ):
        ray_cluster.join(SimpleNamespace(ray_runtime_env=None))
