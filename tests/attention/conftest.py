# SPDX-License-Identifier: Apache-2.0
"""Attention is tested on the host and on the anvil device alike."""

import sys
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
