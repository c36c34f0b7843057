# SPDX-License-Identifier: Apache-2.0
"""The method of layers of experts: packed or not, on one device or on one of several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import fused_topk_bias
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from vllm_anvil.ops.packed_weight import PackedWeight
from vllm_anvil.plugin import op_arguments, seams

pytestmark = pytest.mark.usefixtures("anvil_layers")

EXPERTS, HIDDEN, INTERMEDIATE = 5, 36, 20


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    monkeypatch.setattr(utils, "default_unquantized_gemm", utils.default_unquantized_gemm)
    for name in ("topk_softmax", "topk_sigmoid"):
        monkeypatch.setattr(_custom_ops, name, getattr(_custom_ops, name))
    seams.apply(["unquantized_gemm", "expert_routing"])
    config = VllmConfig()
    with set_current_vllm_config(config), set_forward_context(None, config):
        yield


def configuration(**options: Any) -> FusedMoEConfig:
    return FusedMoEConfig(
        **{
            "num_experts": EXPERTS,
            "experts_per_token": 2,
            "hidden_dim": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_local_experts": EXPERTS,
            "num_logical_experts": EXPERTS,
            "activation": MoEActivation.SILU,
            "device": "anvil",
            "routing_method": RoutingMethodType.Renormalize,
            "moe_parallel_config": FusedMoEParallelConfig.make_no_parallel(),
            "in_dtype": torch.bfloat16,
        }
        | options
    )


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Layer(nn.Module):
    """What the method knows of the engine's `RoutedExperts`."""

    def __init__(self, dtype: torch.dtype, **options: Any) -> None:
        super().__init__()
        moe = configuration(**options)
        self.layer_name, self.scoring_func = "experts", "softmax"
        self.activation, self.expert_map = moe.activation, None
        self.apply_router_weight_on_input = False
        self.quant_method = UnquantizedFusedMoEMethod(moe)
        with torch.device("anvil"):
            self.quant_method.create_weights(self, EXPERTS, HIDDEN, INTERMEDIATE, dtype)
        self.w13_weight.data.copy_(normal(EXPERTS, 2 * INTERMEDIATE, HIDDEN, seed=1) * 0.2)
        self.w2_weight.data.copy_(normal(EXPERTS, HIDDEN, INTERMEDIATE, seed=2) * 0.2)

    def load(self) -> Layer:
        self.quant_method.process_weights_after_loading(self)
        return self

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        return self.quant_method.apply(self, x, weights, ids, None, None)


def expected(layer: Layer, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """In float64, token by token."""
    gate_up, down = layer.w13_weight.cpu().double(), layer.w2_weight.cpu().double()
    functions = {
        MoEActivation.SILU: torch.nn.functional.silu,
        MoEActivation.GELU: torch.nn.functional.gelu,
        MoEActivation.GELU_TANH: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }
    rows = []
    for row, shares, chosen in zip(
        x.cpu().double(), weights.cpu().double(), ids.tolist(), strict=True
    ):
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for share, expert in zip(shares, chosen, strict=True):
            if layer.expert_map is not None:
                expert = int(layer.expert_map[expert])
            if expert < 0:
                continue
            given = row * share if layer.apply_router_weight_on_input else row
            gate, up = (gate_up[expert] @ given).chunk(2)
            result = down[expert] @ (functions[layer.activation](gate) * up)
            total += result if layer.apply_router_weight_on_input else share * result
        rows.append(total)
    return torch.stack(rows)


def routing(tokens: int, choices: int = 2) -> tuple[Tensor, Tensor]:
    x = normal(tokens, HIDDEN, seed=3).to("anvil")
    weights, ids, _ = fused_topk(
        x, normal(tokens, EXPERTS, seed=4).to("anvil"), choices, renormalize=True
    )
    return weights, ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [True, False])
def test_float32_hidden_states(
    dtype: torch.dtype, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_PACK_WEIGHTS", "1" if packed else "0")
    layer = Layer(dtype).load()
    assert isinstance(layer.w13_weight, PackedWeight) == packed
    assert layer.w13_weight.shape == (EXPERTS, 2 * INTERMEDIATE, HIDDEN)
    op_arguments.fallbacks.clear()
    x, (weights, ids) = normal(9, HIDDEN, seed=5).to("anvil"), routing(9)
    result = layer(x, weights, ids)
    assert result.dtype == torch.float32
    assert torch.allclose(result.cpu().double(), expected(layer, x, weights, ids), atol=1e-5)
    assert bool(op_arguments.fallbacks) != packed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hidden_states(dtype: torch.dtype) -> None:
    """What lies between the products is rounded to the weights' dtype, so that both are its."""
    layer = Layer(dtype).load()
    x, (weights, ids) = normal(9, HIDDEN, seed=5).to(dtype).to("anvil"), routing(9)
    result = layer(x, weights, ids)
    exact = expected(layer, x, weights, ids)
    assert result.dtype == dtype
    assert torch.allclose(
        result.cpu().double(), exact, atol=8 * torch.finfo(dtype).eps * float(exact.abs().mean())
    )


@pytest.mark.parametrize("packed", ["1", "0"])
@pytest.mark.parametrize(
    "activation", [MoEActivation.SILU, MoEActivation.GELU, MoEActivation.GELU_TANH]
)
def test_a_device_of_several(
    activation: MoEActivation, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANVIL_PACK_WEIGHTS", packed)
    layer = Layer(torch.float32, activation=activation).load()
    layer.expert_map = torch.tensor([-1, 2, -1, 0, 4], dtype=torch.int32, device="anvil")
    x, (weights, ids) = normal(9, HIDDEN, seed=5).to("anvil"), routing(9)
    exact = expected(layer, x, weights, ids)
    assert torch.allclose(layer(x, weights, ids).cpu().double(), exact, atol=1e-5)


@pytest.mark.parametrize("packed", ["1", "0"])
def test_weights_on_the_input(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_PACK_WEIGHTS", packed)
    layer = Layer(torch.float32).load()
    layer.apply_router_weight_on_input = True
    x = normal(9, HIDDEN, seed=5).to("anvil")
    weights, ids = normal(9, 1, seed=6).to("anvil"), routing(9, 1)[1]
    exact = expected(layer, x, weights, ids)
    assert torch.allclose(layer(x, weights, ids).cpu().double(), exact, atol=1e-5)


def test_inputs_that_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(torch.bfloat16).load()
    x, (weights, ids) = normal(9, HIDDEN, seed=5).to("anvil"), routing(9)
    exact = expected(layer, x, weights, ids)
    errors = []
    for rounding in ("none", "most", "all"):
        monkeypatch.setenv("ANVIL_ROUND_INPUTS", rounding)
        result = layer(x, weights, ids).cpu().double()
        errors.append(float((result - exact).square().mean().sqrt()))
    assert errors[0] < 1e-6 < errors[1] < errors[2] < 0.01


def test_weights_that_are_loaded_again() -> None:
    layer = Layer(torch.bfloat16).load()
    memory = layer.w13_weight.packed.data_ptr()
    new = normal(INTERMEDIATE, HIDDEN, seed=7).bfloat16()
    layer.w13_weight.data[3].narrow(0, INTERMEDIATE, INTERMEDIATE).copy_(new)
    layer.load()
    assert layer.w13_weight.packed.data_ptr() == memory
    assert torch.equal(layer.w13_weight[3, INTERMEDIATE:].cpu(), new)
    x, (weights, ids) = normal(9, HIDDEN, seed=5).to("anvil"), routing(9)
    exact = expected(layer, x, weights, ids)
    assert torch.allclose(layer(x, weights, ids).cpu().double(), exact, atol=1e-4)


def test_a_weight_at_a_time_is_there_twice() -> None:
    layer = Layer(torch.float32)
    torch.anvil.synchronize()
    torch.anvil.reset_peak_memory_stats()
    before = torch.anvil.memory_allocated()
    layer.load()
    torch.anvil.synchronize()
    largest = layer.w13_weight.packed.nbytes
    assert torch.anvil.max_memory_allocated() - before < 1.3 * largest


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"has_bias": True}, "biases of experts"),
        ({"activation": MoEActivation.SWIGLUOAI}, "activation swigluoai"),
        ({"swiglu_limit": 7.0}, "a limit of its gate"),
    ],
)
def test_what_the_op_does_not_compute(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Layer(torch.bfloat16, **options)


def test_other_scores_are_refused() -> None:
    layer = Layer(torch.bfloat16)
    layer.scoring_func = "sqrtsoftplus"
    with pytest.raises(ValueError, match="experts that are chosen by sqrtsoftplus"):
        layer.quant_method.create_weights(layer, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_engines_routers(scoring: str, renormalize: bool) -> None:
    x = normal(11, HIDDEN, seed=8).to("anvil")
    logits = normal(11, 40, seed=9)
    scores = logits.double().softmax(-1) if scoring == "softmax" else logits.double().sigmoid()
    bias = normal(40, seed=10)
    for offsets, scale in ((None, 1.0), (bias, 2.5)):
        if offsets is None:
            found = fused_topk(x, logits.to("anvil"), 4, renormalize, scoring_func=scoring)[:2]
        else:
            found = fused_topk_bias(
                x,
                logits.to("anvil"),
                scoring,
                offsets.to("anvil"),
                4,
                renormalize,
                routed_scaling_factor=scale,
            )
        ranks = scores if offsets is None else scores + offsets.double()
        chosen = ranks.topk(4).indices
        share = scores.gather(1, chosen)
        if renormalize:
            share = share / share.sum(-1, keepdim=True)
        assert torch.equal(found[1].cpu().long(), chosen)
        assert torch.allclose(found[0].cpu().double(), share * scale, rtol=1e-6)


def test_padding_of_the_step_is_not_routed() -> None:
    """Of a step's own tokens; tokens that were gathered from several replicas are all routed."""
    from vllm.forward_context import get_forward_context

    x, logits = normal(6, HIDDEN, seed=11).to("anvil"), normal(6, 8, seed=12).to("anvil")
    everything = fused_topk(x, logits, 2, True)[1]
    get_forward_context().is_padding = torch.tensor([False] * 4 + [True] * 2, device="anvil")
    ids = fused_topk(x, logits, 2, True)[1]
    assert torch.equal(ids[:4], everything[:4]) and bool((ids[4:] == -1).all())
    gathered = fused_topk(x.repeat(2, 1), logits.repeat(2, 1), 2, True)[1]
    assert torch.equal(gathered, everything.repeat(2, 1))
