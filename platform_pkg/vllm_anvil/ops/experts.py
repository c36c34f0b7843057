# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: which of them a token goes through, and what they make of it."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fakes below need the ops to exist


def choose_experts(
    logits: Tensor,
    weights: Tensor,
    ids: Tensor,
    scoring: str,
    renormalize: bool,
    bias: Tensor | None = None,
    scale: float = 1.0,
    skip: Tensor | None = None,
) -> None:
    """The experts with the greatest scores for each token, the greatest first.

    A token's choice depends neither on the other tokens nor on the number of threads. Of equal
    scores the first comes first; NaN is the least, so that every number is that of an expert and
    none is there twice.

    Args:
        logits: ``[tokens, experts]`` float32, bfloat16 or float16, any strides; up to 4,096
            experts.
        weights: ``[tokens, choices]`` float32, contiguous, **written**: the scores of the chosen.
        ids: ``[tokens, choices]`` int32 or int64, contiguous, **written**: their numbers.
        scoring: ``"softmax"`` or ``"sigmoid"`` of the logits, in float32.
        renormalize: divide a token's weights by their sum, unless that is 0.
        bias: ``[experts]``, float32, bfloat16 or float16: added to scores to choose by, not to
            weights. None: 0.
        scale: what weights are multiplied by at last.
        skip: ``[tokens]`` bool, contiguous: tokens that get -1 for every expert and weights of 0.
            None: no token.

    Raises:
        TypeError: a dtype is another one.
        ValueError: shapes contradict one another, devices differ, there are more choices than
            experts or too many experts, or ``scoring`` is another one.
    """
    torch.ops.anvil.choose_experts(logits, weights, ids, scoring, renormalize, bias, scale, skip)


@torch.library.register_fake("anvil::choose_experts")
def _choose_experts(
    logits: Tensor,
    weights: Tensor,
    ids: Tensor,
    scoring: str,
    renormalize: bool,
    bias: Tensor | None = None,
    scale: float = 1.0,
    skip: Tensor | None = None,
) -> None:
    return None


def mixture_of_experts(
    input: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    ids: Tensor,
    intermediate: int,
    activation: str = "silu",
    expert_map: Tensor | None = None,
    input_dtype: torch.dtype | None = None,
    rows_in_use: Tensor | None = None,
    keep_remainders: bool = False,
) -> Tensor:
    """The sum over a token's choices of ``weight * down(act(gate(x)) * up(x))`` by the chosen
    experts.

    Experts are looked up when the op runs, so that a graph serves any routing; weights of experts
    that nobody chose are not read. All is float32 in between, with the sums of `packed_linear`, and
    choices are added up in their order: a token's result is the same bits whatever the other tokens
    are.

    Args:
        input: ``[tokens, depth]`` float32, bfloat16 or float16, any strides.
        gate_up: ``[experts, ...]``: one behind the other, what `pack_linear` makes of each expert's
            ``[2 * intermediate, depth]``, whose first half is the gate.
        down: ``[experts, ...]``: the same of ``[depth, intermediate]``, of ``gate_up``'s dtype.
        weights: ``[tokens, choices]`` float32, rows contiguous.
        ids: ``[tokens, choices]`` int32 or int64, rows contiguous. Numbers that mean no expert, -1
            for one, add nothing.
        intermediate: columns of the gate.
        activation: of the gate: ``"silu"``, ``"gelu"`` or ``"gelu_tanh"``.
        expert_map: ``[numbers]`` int32, contiguous: which of the experts here a number of ``ids``
            means; -1: none. None: each number means itself.
        input_dtype: the weights' dtype, to round the inputs of both products to it, or None. With
            bfloat16 that brings the processor's dot products, at twice float32's rate.
        rows_in_use: int32 with one element, or None for all: how many of the tokens are computed,
            read when the op runs.
        keep_remainders: as in `packed_linear`, of the inputs of both products.

    Returns:
        ``[tokens, depth]`` of ``input``'s dtype, contiguous. Rows that are not in use hold
        anything.

    Raises:
        TypeError: a dtype is none of these.
        ValueError: shapes contradict one another, devices differ, or ``activation`` is another one.
    """
    return torch.ops.anvil.mixture_of_experts(
        input,
        gate_up,
        down,
        weights,
        ids,
        intermediate,
        activation,
        expert_map,
        input_dtype,
        rows_in_use,
        keep_remainders,
    )


@torch.library.register_fake("anvil::mixture_of_experts")
def _mixture_of_experts(
    input: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    ids: Tensor,
    intermediate: int,
    activation: str = "silu",
    expert_map: Tensor | None = None,
    input_dtype: torch.dtype | None = None,
    rows_in_use: Tensor | None = None,
    keep_remainders: bool = False,
) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)
