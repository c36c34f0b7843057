# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vllm_anvil.device as anvil
from vllm_anvil.ops.experts import choose_experts, mixture_of_experts
from vllm_anvil.ops.gemm import pack_linear, packed_linear

from .row_independence import device_threads

EXPERTS, DEPTH, INTERMEDIATE = 7, 72, 40


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Layer:
    """Random experts, and a token's result by packed_linear, one expert at a time."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        first = normal(EXPERTS, 2 * INTERMEDIATE, DEPTH, seed=1).to(dtype).to(device)
        second = normal(EXPERTS, DEPTH, INTERMEDIATE, seed=2).to(dtype).to(device)
        self.gate_up = torch.stack([pack_linear(one) for one in first])
        self.down = torch.stack([pack_linear(one) for one in second])

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor, **options: Any) -> Tensor:
        return mixture_of_experts(x, self.gate_up, self.down, weights, ids, INTERMEDIATE, **options)

    def one_by_one(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        rows = []
        for row, shares, chosen in zip(x, weights, ids.tolist(), strict=True):
            total = torch.zeros(DEPTH, dtype=torch.float32, device=x.device)
            for share, expert in zip(shares, chosen, strict=True):
                between = packed_linear(row, self.gate_up[expert], 2 * INTERMEDIATE)
                gated = torch.ops.anvil.silu_and_mul(between.float())
                result = packed_linear(gated, self.down[expert], DEPTH)
                if anvil.active_isa() == "scalar":  # which rounds the product as well
                    total = total + share * result.float()
                else:
                    total = torch.addcmul(total.double(), share.double(), result.double()).float()
            rows.append(total)
        return torch.stack(rows).to(x.dtype)


def routing(tokens: int, device: torch.device | str, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Weights and numbers of three experts a token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:3] for _ in range(tokens)])
    return torch.rand(tokens, 3, generator=generator).to(device), ids.int().to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_is_what_its_experts_make_of_it(dtype: torch.dtype, device: torch.device) -> None:
    """Bit for bit the sums of packed_linear, for few tokens and for many."""
    layer = Layer(dtype, device)
    x = normal(450, DEPTH, seed=4).to(device)
    weights, ids = routing(450, device)
    together = layer(x, weights, ids)
    sample = slice(0, 450, 23)
    assert torch.equal(together[sample], layer.one_by_one(x[sample], weights[sample], ids[sample]))
    for tokens in (0, 1, 2, 5, 8, 33, 200):
        assert torch.equal(layer(x[:tokens], weights[:tokens], ids[:tokens]), together[:tokens])
    for threads in (1, 2, 3):
        with device_threads(threads):
            assert torch.equal(layer(x, weights, ids), together)


def test_views_are_read_where_they_lie(device: torch.device) -> None:
    layer = Layer(torch.bfloat16, device)
    x = normal(20, 2 * DEPTH, seed=5).to(device)
    weights, ids = routing(20, device)
    expected = layer(x[:, DEPTH:].contiguous(), weights, ids)
    wide = torch.stack([weights, weights], 1).view(20, 6)[:, 3:]
    numbers = torch.stack([ids, ids], 1).view(20, 6).long()[:, :3]
    assert torch.equal(layer(x[:, DEPTH:], wide, numbers), expected)


def test_devices_that_share_the_experts_add_up(device: torch.device) -> None:
    layer = Layer(torch.float32, device)
    x = normal(30, DEPTH, seed=6).to(device)
    weights, ids = routing(30, device)
    expected = layer(x, weights, ids)
    total = torch.zeros_like(expected)
    for here in (torch.arange(0, 4), torch.arange(4, EXPERTS)):
        numbers = torch.full((EXPERTS,), -1, dtype=torch.int32)
        numbers[here] = torch.arange(len(here), dtype=torch.int32)
        total += mixture_of_experts(
            x,
            layer.gate_up[here[0] : here[-1] + 1],
            layer.down[here[0] : here[-1] + 1],
            weights,
            ids,
            INTERMEDIATE,
            expert_map=numbers.to(device),
        )
    assert torch.allclose(total, expected, rtol=1e-5, atol=1e-4)


def test_weights_of_experts_that_nobody_chose_are_not_read(device: torch.device) -> None:
    """NaN in them would spoil what they are multiplied with, even by 0."""
    layer = Layer(torch.float32, device)
    x = normal(40, DEPTH, seed=7).to(device)
    weights, ids = routing(40, device)
    ids = torch.where(ids == 2, -1, ids)
    expected = layer(x, weights, ids)
    layer.gate_up[2], layer.down[2] = torch.nan, torch.nan
    assert torch.equal(layer(x, weights, ids), expected)


def test_replays_follow_the_routing() -> None:
    """A graph that was captured for one routing and number of tokens serves others."""
    layer = Layer(torch.bfloat16, "anvil")
    x = normal(9, DEPTH, seed=8).to("anvil")
    weights, ids = routing(9, "anvil")
    logits = normal(9, EXPERTS, seed=9).to("anvil")
    in_use = torch.tensor([9], dtype=torch.int32, device="anvil")
    graph = anvil.Graph()
    with anvil.graph(graph):
        choose_experts(logits, weights, ids, "softmax", True)
        result = layer(x, weights, ids, rows_in_use=in_use)
    for seed, count in ((10, 9), (11, 4), (12, 0)):
        logits.copy_(normal(9, EXPERTS, seed=seed))
        x.copy_(normal(9, DEPTH, seed=seed + 100))
        in_use.fill_(count)
        graph.replay()
        shares, chosen = weights.clone(), ids.clone()
        choose_experts(logits, shares, chosen, "softmax", True)
        assert torch.equal(chosen, ids) and torch.equal(shares, weights)
        assert torch.equal(result[:count], layer(x, shares, chosen)[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_scores_the_first_come_first(dtype: torch.dtype, device: torch.device) -> None:
    logits = torch.zeros(3, 12, dtype=dtype, device=device)
    logits[1, 7] = logits[1, 9] = 1.0
    weights = torch.zeros(3, 4, device=device)
    ids = torch.zeros(3, 4, dtype=torch.int64, device=device)
    choose_experts(logits, weights, ids, "softmax", True)
    assert ids.tolist() == [[0, 1, 2, 3], [7, 9, 0, 1], [0, 1, 2, 3]]
    assert torch.equal(weights[0], torch.full((4,), 0.25, device=device))


def test_a_choice_without_numbers_is_one_of_experts(device: torch.device) -> None:
    """Rows of a captured step that no token is in hold anything."""
    logits = torch.full((1, 6), torch.nan, device=device)
    weights, ids = torch.zeros(1, 3, device=device), torch.zeros(1, 3, device=device).int()
    for scoring in ("softmax", "sigmoid"):
        choose_experts(logits, weights, ids, scoring, True)
        assert ids.tolist() == [[0, 1, 2]] and bool(weights.isnan().all())


WRONG = {
    "input": lambda a: {"input": a["input"][0]},
    "gate_up": lambda a: {"gate_up": a["gate_up"][:, :-1]},
    "down has 6": lambda a: {"down": a["down"][:6]},
    "down must be": lambda a: {"down": a["down"].bfloat16()},
    "weights must be": lambda a: {"weights": a["weights"].double()},
    "weights has 2 choices": lambda a: {"weights": a["weights"][:, :2]},
    "ids must be int64 or int32": lambda a: {"ids": a["ids"].float()},
    "ids has 4 rows for 5 tokens": lambda a: {"ids": a["ids"][:4]},
    "expert_map": lambda a: {"expert_map": torch.zeros(EXPERTS)},
    "input_dtype": lambda a: {"input_dtype": torch.bfloat16},
    "keep_remainders": lambda a: {"keep_remainders": True},
    "activation": lambda a: {"activation": "relu"},
    "rows_in_use": lambda a: {"rows_in_use": torch.zeros(2, dtype=torch.int32)},
}


@pytest.mark.parametrize("message", WRONG)
def test_refusals(message: str, device: torch.device) -> None:
    layer = Layer(torch.float32, device)
    weights, ids = routing(5, device)
    arguments = {
        "input": normal(5, DEPTH).to(device),
        "gate_up": layer.gate_up,
        "down": layer.down,
        "weights": weights,
        "ids": ids,
        "intermediate": INTERMEDIATE,
    }
    changed = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in WRONG[message](arguments).items()
    }
    with pytest.raises((TypeError, ValueError), match=message):
        mixture_of_experts(**(arguments | changed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scoring": "relu"}, "scoring must be"),
        ({"logits": torch.zeros(2, 3)}, "up to 3 choices"),
        ({"logits": torch.zeros(2, 5000)}, "at most 4096"),
        ({"bias": torch.zeros(7)}, "bias has 7"),
        ({"skip": torch.zeros(2)}, "skip must be"),
        ({"weights": torch.zeros(2, 3)}, "weights has 3 choices"),
    ],
)
def test_refused_choices(change: dict[str, Any], message: str, device: torch.device) -> None:
    arguments = {
        "logits": torch.zeros(2, 8),
        "weights": torch.zeros(2, 4),
        "ids": torch.zeros(2, 4, dtype=torch.int32),
        "scoring": "softmax",
        "renormalize": True,
    } | change
    placed = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}
    with pytest.raises((TypeError, ValueError), match=message):
        choose_experts(**placed)
