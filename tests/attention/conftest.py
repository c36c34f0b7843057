# SPDX-License-Identifier: Apache-2.0
"""Attention is tested on the host and on the anvil device alike."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Before anything registers references: a library that comes later could not define its ops.
import vllm_anvil.ops  # noqa: F401

# What the tests of this folder share.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(params=["cpu", "anvil"], scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=["native", "reference"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is served, by its name."""
    monkeypatch.setenv("ANVIL_ATTENTION_IMPL", request.param)
    return request.param


@pytest.fixture
def nothing_served_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default is served until the test says otherwise, and nobody watches it."""
    from anvil_attention import observers, serving

    monkeypatch.delenv(serving.VARIABLE, raising=False)
    monkeypatch.setattr(serving, "_served", {})
    yield
    observers.set_observer(None)
