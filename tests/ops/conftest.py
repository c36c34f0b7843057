# SPDX-License-Identifier: Apache-2.0
import os

import pytest
import torch

import vllm_anvil.device  # noqa: F401  registers torch.anvil


@pytest.fixture(params=["cpu", "anvil"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Ops run on both: the same checks and kernels, with and without the device's workers."""
    return torch.device(request.param)


@pytest.fixture(scope="session", autouse=True)
def instruction_set() -> str:
    """The kernels under test; wrong ones would make every result here meaningless."""
    active = torch.anvil.active_isa()
    expected = os.environ.get("ANVIL_ISA") or torch.anvil.supported_isas()[0]
    assert active == expected
    return active
