# SPDX-License-Identifier: Apache-2.0
"""Tensors of different devices do not mix in one op, except as other accelerators allow."""

from __future__ import annotations

import pytest
import torch

import vllm_anvil.device  # noqa: F401

X = torch.ones(3, 3)
MIXED = "Expected all tensors to be on the same device"


@pytest.mark.parametrize(
    "operation",
    [
        lambda: X.to("anvil") + X,
        lambda: X + X.to("anvil"),
        lambda: X.to("anvil").add_(X),
        lambda: X.clone().add_(X.to("anvil")),
        lambda: torch.mm(X.to("anvil"), X),
        lambda: torch.cat([X.to("anvil"), X]),
        lambda: torch.where(X.to("anvil") > 0, X, X.to("anvil")),
        lambda: torch.add(X, X, out=torch.empty(3, 3, device="anvil")),
        lambda: torch.add(X.to("anvil"), 1, out=torch.empty(3, 3)),
        lambda: torch.nn.functional.embedding(torch.tensor([1]), X.to("anvil")),
        lambda: torch.index_select(X.to("anvil"), 0, torch.tensor([0])),
        lambda: torch.tensor(1.0).add_(torch.ones((), device="anvil")),
        lambda: X[torch.tensor([0], device="anvil")].add(X.to("anvil")),
    ],
)
def test_mixing_raises(operation) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=MIXED):
        operation()


def test_error_names_both_devices_argument_and_op() -> None:
    with pytest.raises(RuntimeError, match=r"anvil:0 and cpu.*other.*aten::add"):
        X.to("anvil") + X


def test_scalars_on_the_cpu_may_join() -> None:
    scalar = torch.tensor(2.0)
    assert (X.to("anvil") * scalar).sum().item() == 18
    assert (scalar * X.to("anvil")).device.type == "anvil"
    assert torch.where(X.to("anvil") > 0, scalar, X.to("anvil")).sum().item() == 18
    assert (X.to("anvil") + 1).dtype == torch.float32
    assert (
        torch.ones(2, dtype=torch.bfloat16, device="anvil") * torch.tensor(2.0)
    ).dtype == torch.bfloat16


def test_index_tensors_may_be_on_the_cpu() -> None:
    x = torch.arange(9.0).reshape(3, 3)
    rows = torch.tensor([2, 0])
    assert torch.equal(x.to("anvil")[rows].cpu(), x[rows])
    assert torch.equal(x.to("anvil")[x > 4].cpu(), x[x > 4])
    y = x.to("anvil")
    y[rows] = 0
    x[rows] = 0
    assert torch.equal(y.cpu(), x)


def test_autocast_set_for_the_cpu_stays_there() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(X.to("anvil"), X.to("anvil")).dtype == torch.float32
    with torch.autocast("anvil", dtype=torch.bfloat16):
        assert torch.mm(X.to("anvil"), X.to("anvil")).dtype == torch.bfloat16
        assert torch.exp(X.to("anvil").bfloat16()).dtype == torch.float32
        assert torch.mm(X, X).dtype == torch.float32
