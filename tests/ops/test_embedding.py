# SPDX-License-Identifier: Apache-2.0
"""What the case table of embedding cannot say: refusals, commands, layouts of ids."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_anvil.ops import embedding

from .row_independence import device_threads


def weights(rows: int = 20, hidden: int = 33) -> Tensor:
    return torch.randn(rows, hidden, generator=torch.Generator().manual_seed(rows)).bfloat16()


def test_ids_of_any_strides(device: torch.device) -> None:
    ids = torch.arange(60).view(3, 4, 5) % 20
    weight = weights()
    for view in (ids.permute(2, 0, 1), ids[::2, :, 1:4], ids[1, 2, 3], ids[:1].expand(4, -1, -1)):
        result = embedding.embedding(view.to(device), weight.to(device), torch.float32)
        assert result.is_contiguous() and result.dtype == torch.float32
        assert torch.equal(result.cpu(), weight.float()[view])


def test_rows_that_overlap(device: torch.device) -> None:
    """They are only read: a table with all rows the same is one."""
    weight = weights()[3:4].to(device).expand(20, -1)
    result = embedding.embedding(torch.tensor([0, 19], device=device), weight)
    assert torch.equal(result.cpu(), weights()[3:4].expand(2, -1))


def test_the_same_whatever_the_number_of_threads() -> None:
    ids, weight = torch.arange(4000) * 7 % 500, weights(500, 64).to("anvil")
    for number in (1, 2, 3):
        with device_threads(number):
            result = embedding.embedding(ids.to("anvil"), weight, torch.float32)
        assert torch.equal(result.cpu(), weights(500, 64).float()[ids])


def test_a_replayed_graph_reads_and_checks_ids_anew() -> None:
    ids, weight = torch.zeros(3, dtype=torch.int32, device="anvil"), weights().to("anvil")
    embedding.embedding(ids, weight)
    graph = torch.anvil.Graph()
    with torch.anvil.graph(graph):
        result = embedding.embedding(ids, weight)
    for chosen in ([1, 2, 3], [19, 0, 7]):
        ids.copy_(torch.tensor(chosen, dtype=torch.int32))
        graph.replay()
        assert torch.equal(result.cpu(), weights()[chosen])
    ids.fill_(20)
    graph.replay()
    with pytest.raises(IndexError, match=r"ids\[0\] is 20, but must be below 20"):
        torch.anvil.synchronize()
    assert torch.equal(result.cpu(), weights()[[19, 0, 7]])


Change = Callable[[dict[str, Any]], dict[str, Any]]
REFUSALS: dict[str, tuple[Change, type[Exception], str]] = {
    "id past the end": (
        lambda a: {"ids": torch.tensor([3, 20, 21])},
        IndexError,
        r"ids\[1\] is 20, but must be below 20 \(rows of weight\)",
    ),
    "negative id": (
        lambda a: {"ids": torch.tensor([0, 0, -1], dtype=torch.int32)},
        IndexError,
        r"ids\[2\] is -1, but must be at least 0",
    ),
    "id of two dimensions": (
        lambda a: {"ids": torch.tensor([[0, 1], [2, 99]])},
        IndexError,
        r"ids.flatten\(\)\[3\] is 99, but must be below 20",
    ),
    "no rows": (
        lambda a: {"weight": a["weight"][:0]},
        IndexError,
        r"ids\[0\] is 0, but must be below 0",
    ),
    "ids that are no integers": (
        lambda a: {"ids": torch.tensor([1.0])},
        TypeError,
        "ids must be int64 or int32, but is Float",
    ),
    "float64 weight": (
        lambda a: {"weight": a["weight"].double()},
        TypeError,
        "weight must be float32, bfloat16 or float16, but is Double",
    ),
    "another dtype": (
        lambda a: {"dtype": torch.float64},
        TypeError,
        "dtype must be float32, bfloat16 or float16, but is Double",
    ),
    "three dimensions": (
        lambda a: {"weight": a["weight"][None]},
        ValueError,
        "weight must have 2 dimension",
    ),
    "transposed weight": (
        lambda a: {"weight": a["weight"].T.contiguous().T},
        ValueError,
        "the last dimension of weight must be contiguous",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(device: torch.device, case: str) -> None:
    change, error, message = REFUSALS[case]
    arguments: dict[str, Any] = {"ids": torch.tensor([0, 5]), "weight": weights(), "dtype": None}
    arguments |= change(arguments)
    weight = arguments["weight"]
    arguments["ids"] = arguments["ids"].to(device)
    arguments["weight"] = torch.empty_strided(
        weight.shape, weight.stride(), dtype=weight.dtype, device=device
    )
    with pytest.raises(error, match="anvil::embedding: .*" + message):
        embedding.embedding(**arguments)
        torch.anvil.synchronize()  # what depends on values is reported by the next wait


def test_refuses_mixed_devices() -> None:
    with pytest.raises(ValueError, match=r"ids must be on anvil:0 .* but is on cpu"):
        embedding.embedding(torch.tensor([1]), weights().to("anvil"))


def test_opcheck(device: torch.device) -> None:
    ids, weight = torch.tensor([[1, 2], [3, 3]], device=device), weights().to(device)
    for dtype in (None, torch.float32):
        torch.library.opcheck(torch.ops.anvil.embedding.default, (ids, weight, dtype))
