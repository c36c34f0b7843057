# SPDX-License-Identifier: Apache-2.0
"""The benchmark's tests run on small problems with one thread: none of them asserts a time."""

from collections.abc import Iterator

import pytest
import torch

import vllm_anvil.device  # noqa: F401  before the references complete `torch.ops.anvil`
from anvil_attention.bench.devices import open_device


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", "anvil"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return open_device(request.param)
