# SPDX-License-Identifier: Apache-2.0
"""Seam: which experts a token goes through.

What vLLM does
    Its routers `FusedTopKRouter` and `FusedTopKBiasRouter` call `vllm._custom_ops.topk_softmax` and
    `topk_sigmoid`, ops of the extension `_moe_C`, which builds for CUDA and ROCm alone have. (The
    grouped router is plain torch, and so are functions that models bring.)
What is changed
    These two names mean functions that call `torch.ops.anvil.choose_experts`. A mask of padding
    that is another batch's is left out: what is padding there is computed, and nobody reads it.
Checked against
    vllm 0.32.
Unnecessary when
    The engine asks the platform for the functions, or its routers are plain torch elsewhere.
Test that fails then
    tests/plugin/test_seams.py::test_expert_routing_is_needed
"""

from __future__ import annotations

import torch
from vllm import _custom_ops

from vllm_anvil.ops.experts import choose_experts


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    e_score_correction_bias: torch.Tensor | None = None,
    is_padding: torch.Tensor | None = None,
) -> None:
    """Writes the weights and numbers of each token's experts. `token_expert_indices`, which kernels
    of a GPU sort by, is left alone."""
    choose_experts(
        gating_output,
        topk_weights,
        topk_ids,
        "softmax",
        renormalize,
        e_score_correction_bias,
        skip=_mask_of(gating_output, is_padding),
    )


def topk_sigmoid(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    e_score_correction_bias: torch.Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    is_padding: torch.Tensor | None = None,
) -> None:
    """As `topk_softmax`, for scores that are sigmoids."""
    choose_experts(
        gating_output,
        topk_weights,
        topk_ids,
        "sigmoid",
        renormalize,
        e_score_correction_bias,
        routed_scaling_factor,
        _mask_of(gating_output, is_padding),
    )


def _mask_of(logits: torch.Tensor, is_padding: torch.Tensor | None) -> torch.Tensor | None:
    """The mask, where it is that of these tokens. With data-parallel replicas they are those of all
    replicas, gathered before experts are chosen, and the mask is this replica's."""
    return is_padding if is_padding is not None and len(is_padding) == len(logits) else None


def apply() -> None:
    _custom_ops.topk_softmax = topk_softmax
    _custom_ops.topk_sigmoid = topk_sigmoid
