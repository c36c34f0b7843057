# SPDX-License-Identifier: Apache-2.0
"""Products of low-rank adapters beyond the op table: rows by themselves, and captured ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops.lora import lora_expand, lora_shrink

ANVIL = torch.device("anvil")
ADAPTERS, RANK, DEPTH, COLUMNS = 3, 16, 130, (96, 33)


def groups(of: list[int]) -> tuple[Tensor, Tensor]:
    """order and starts of tokens whose adapters are these, -1 for none."""
    order = sorted((adapter, token) for token, adapter in enumerate(of) if adapter >= 0)
    starts = [sum(one < a for one, _ in order) for a in range(ADAPTERS + 1)]
    return (
        torch.tensor([token for _, token in order], dtype=torch.int32, device=ANVIL),
        torch.tensor(starts, dtype=torch.int32, device=ANVIL),
    )


class Layer:
    """Two projections of one input, with random adapters."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.dtype = dtype
        self.a = [torch.randn(ADAPTERS, RANK, DEPTH).to(dtype).to(ANVIL) for _ in COLUMNS]
        self.b = [torch.randn(ADAPTERS, RANK, n).to(dtype).to(ANVIL).mT for n in COLUMNS]

    def add(self, x: Tensor, y: Tensor, order: Tensor, starts: Tensor) -> None:
        shrunk = torch.empty(2, len(x), RANK, device=ANVIL)
        lora_shrink(x, self.a, order, starts, shrunk)
        lora_expand(shrunk, self.b, order, starts, y)

    def expected(self, x: Tensor, y: Tensor, of: list[int]) -> Tensor:
        """In float64."""
        result = y.double().cpu()
        for token, adapter in enumerate(of):
            if adapter >= 0:
                row = x[token].double().cpu()
                parts = [
                    b[adapter].double().cpu() @ (a[adapter].double().cpu() @ row)
                    for a, b in zip(self.a, self.b, strict=True)
                ]
                result[token] += torch.cat(parts)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    layer = Layer(dtype)
    of = [(7 * token) % (ADAPTERS + 1) - 1 for token in range(150)]
    x = torch.randn(len(of), DEPTH).to(dtype).to(ANVIL)
    y = torch.randn(len(of), sum(COLUMNS)).to(dtype).to(ANVIL)
    together = y.clone()
    layer.add(x, together, *groups(of))
    for first, count in ((0, 1), (5, 1), (9, 2), (20, 3), (40, 7), (60, 64), (3, 147)):
        rows = slice(first, first + count)
        some = y[rows].clone()
        layer.add(x[rows], some, *groups(of[rows]))
        assert torch.equal(some, together[rows]), (first, count)


def test_a_captured_step_is_replayed_with_other_adapters() -> None:
    """Captured for 8 tokens, replayed with fewer, other adapters and none."""
    layer = Layer(torch.float32)
    x, y = torch.empty(8, DEPTH, device=ANVIL), torch.empty(8, sum(COLUMNS), device=ANVIL)
    order = torch.arange(8, dtype=torch.int32, device=ANVIL)
    starts = torch.tensor([0, 8, 8, 8], dtype=torch.int32, device=ANVIL)
    x.normal_(), y.normal_()
    layer.add(x, y, order, starts)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        layer.add(x, y, order, starts)
    for of in ([0, 1, 2, -1, 2, 2, 1, 0], [2, -1, 1], [-1] * 8, [1] * 8):
        x.normal_(), y.normal_()
        expected = layer.expected(x, y, of)
        found = groups(of)
        order[: len(found[0])].copy_(found[0])
        starts.copy_(found[1])
        graph.replay()
        torch.testing.assert_close(y.double().cpu(), expected, rtol=1e-4, atol=1e-3)


def test_columns_must_lie_side_by_side() -> None:
    layer = Layer(torch.float32)
    order, starts = groups([0])
    with pytest.raises(ValueError, match="b must have the elements of dimension 1 side by side"):
        lora_expand(
            torch.zeros(2, 1, RANK, device=ANVIL),
            [one.contiguous() for one in layer.b],
            order,
            starts,
            torch.zeros(1, sum(COLUMNS), device=ANVIL),
        )


def test_shapes_that_contradict_one_another_are_named() -> None:
    layer = Layer(torch.float32)
    order, starts = groups([0])
    x, shrunk = torch.zeros(1, DEPTH, device=ANVIL), torch.zeros(2, 1, RANK, device=ANVIL)
    with pytest.raises(ValueError, match="the last dimension of input is 129, but a has shape"):
        lora_shrink(x[:, 1:], layer.a, order, starts, shrunk)
    with pytest.raises(ValueError, match=r"starts has 3 elements for 3 adapters"):
        lora_shrink(x, layer.a, order, starts[1:], shrunk)
    with pytest.raises(ValueError, match=r"shrunk must be \[2, 1, 16\]"):
        lora_shrink(x, layer.a, order, starts, shrunk[:1])
    with pytest.raises(ValueError, match="b has columns up to 130 from offset on"):
        lora_expand(shrunk, layer.b, order, starts, torch.zeros(1, 129, device=ANVIL), offset=1)
