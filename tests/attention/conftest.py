# SPDX-License-Identifier: Apache-2.0
"""Attention is tested on the host and on the anvil device alike."""

import pytest
import torch


@pytest.fixture(params=["cpu", "anvil"], scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "anvil":
        import vllm_anvil.device  # noqa: F401  registers the device
    return torch.device(request.param)
