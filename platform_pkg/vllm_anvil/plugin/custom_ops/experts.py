# SPDX-License-Identifier: Apache-2.0
"""The experts of a mixture without quantisation, which the engine leaves to an out-of-tree platform
(`UnquantizedMoeBackend.OOT`): no kernel is chosen, and the layer's method brings its own.

The engine's runner does all around it: routing, shared experts, the sum over ranks, and with
data-parallel replicas the exchange of their tokens. Weights of experts are packed once they are
loaded (docs/design/experts.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from vllm_anvil import envs
from vllm_anvil.ops.activation import gelu_and_mul, silu_and_mul
from vllm_anvil.ops.experts import mixture_of_experts
from vllm_anvil.ops.packed_weight import DTYPES, PackedWeight
from vllm_anvil.plugin import input_rounding
from vllm_anvil.plugin.op_arguments import note_fallback, takes

if TYPE_CHECKING:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

logger = init_logger("vllm.plugins.anvil.experts")

ACTIVATIONS = {
    MoEActivation.SILU: "silu",
    MoEActivation.GELU: "gelu",
    MoEActivation.GELU_TANH: "gelu_tanh",
}
SCORING = ("softmax", "sigmoid")
WEIGHTS = ("w13_weight", "w2_weight")


class AnvilUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """vLLM's method of layers of experts without quantisation, by one op.

    Raises ValueError for what the op does not compute: a bias, a clamp of the gate, an activation
    without a gate or of another function.
    """

    def __init__(self, moe: FusedMoEConfig) -> None:
        super().__init__(moe)
        problem = unsupported(moe)
        if problem is not None:
            raise ValueError(f"A mixture of experts with {problem} is not supported on anvil.")

    @property
    def is_monolithic(self) -> bool:
        """Experts are chosen by the engine's router."""
        return False

    def create_weights(self, layer: RoutedExperts, *args: Any, **kwargs: Any) -> None:
        if layer.scoring_func not in SCORING:
            raise ValueError(
                f"{layer.layer_name}: experts that are chosen by {layer.scoring_func} are not "
                "supported on anvil."
            )
        super().create_weights(layer, *args, **kwargs)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Packs the weights of experts, one layer after the other: a weight at a time is there
        twice. Weights that were loaded again are packed already. ANVIL_PACK_WEIGHTS=0, or the op
        turned off: they stay."""
        if not envs.ANVIL_PACK_WEIGHTS or self._forward_method != self.forward_oot:
            return
        for name in WEIGHTS:
            weight = layer._parameters[name]
            if isinstance(weight, PackedWeight) or weight.dtype not in DTYPES:
                continue
            layer._parameters[name] = PackedWeight.of(weight)

    def forward_oot(
        self,
        layer: RoutedExperts,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        """x [tokens, hidden], weights and numbers [tokens, choices] -> [tokens, hidden] of x's
        dtype: the sum over the experts of this rank. Shared experts are the runner's."""
        gate_up, down = layer.w13_weight, layer.w2_weight
        if not (isinstance(gate_up, PackedWeight) and isinstance(down, PackedWeight) and takes(x)):
            note_fallback("UnquantizedFusedMoEMethod", x=x, w13=gate_up)
            return self.forward_native(layer, x, topk_weights, topk_ids)
        if layer.apply_router_weight_on_input:
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        # It loads the device, which a process on a GPU must not: hence not at the top.
        from vllm_anvil.plugin.seams.unquantized_gemm import rows_in_use

        input_dtype, keep_remainders = input_rounding.of(x.dtype, gate_up.dtype)
        return mixture_of_experts(
            x,
            gate_up.packed,
            down.packed,
            topk_weights,
            topk_ids,
            down.shape[2],
            ACTIVATIONS[layer.activation],
            layer.expert_map,
            input_dtype,
            rows_in_use(x),
            keep_remainders,
        )

    def forward_native(
        self,
        layer: RoutedExperts,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        """The same over weights as they are loaded, by every expert for every token: right, and for
        comparisons only."""
        from vllm_anvil.plugin.seams.unquantized_gemm import unquantized_gemm

        if layer.apply_router_weight_on_input:
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        numbers = topk_ids.long()
        if layer.expert_map is not None:
            known = (numbers >= 0) & (numbers < len(layer.expert_map))
            numbers = torch.where(known, layer.expert_map.long()[numbers * known], -1)
        gate_up, down = layer.w13_weight, layer.w2_weight
        output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(gate_up.shape[0]):
            chosen = numbers == expert
            between = unquantized_gemm(layer, x, gate_up[expert]).contiguous()
            gated = _activate(layer.activation, between)
            result = unquantized_gemm(layer, gated, down[expert]).float()
            share = (topk_weights * chosen).sum(-1, keepdim=True)
            output += torch.where(chosen.any(-1, keepdim=True), share * result, 0.0)
        return output.to(x.dtype)


def _activate(activation: MoEActivation, x: Tensor) -> Tensor:
    if activation == MoEActivation.SILU:
        return silu_and_mul(x)
    return gelu_and_mul(x, "tanh" if activation == MoEActivation.GELU_TANH else "none")


def unsupported(moe: FusedMoEConfig) -> str | None:
    """What of a layer of experts the op does not compute, or None."""
    if moe.has_bias:
        return "biases of experts"
    if moe.activation not in ACTIVATIONS:
        return f"activation {moe.activation.value}"
    if moe.swiglu_limit is not None:
        return "a limit of its gate"
    return None
