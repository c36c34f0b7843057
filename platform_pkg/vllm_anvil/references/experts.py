# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.experts, expert by expert."""

from collections.abc import Callable

import torch
from torch import Tensor

from .gemm import rounded, unpack_linear
from .precision import compute_dtype, wide_dtype

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


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
    x = logits.to(compute_dtype(logits))
    scores = {"softmax": lambda: x.softmax(-1), "sigmoid": x.sigmoid}[scoring]()
    # As numbers of the result's dtype: of two that are the same there, the first comes first.
    scores = scores.to(wide_dtype(logits))
    ranks = scores if bias is None else scores + bias.to(scores.dtype)
    ranks = ranks.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    chosen = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : ids.shape[1]]
    share = scores.gather(1, chosen)
    if renormalize:
        total = share.sum(-1, keepdim=True)
        share = share / total.where(total != 0, torch.ones_like(total))
    share = share * scale
    if skip is not None:
        chosen, share = chosen.masked_fill(skip[:, None], -1), share.masked_fill(skip[:, None], 0)
    ids.copy_(chosen)
    weights.copy_(share)


def rows_of_experts(ids: Tensor, expert_map: Tensor | None, experts: int) -> list[Tensor]:
    """For each expert ``[rows, 2]``: the tokens that chose it, and by which choice."""
    here = ids.long()
    if expert_map is not None:
        known = (here >= 0) & (here < len(expert_map))
        here = torch.where(known, expert_map.long()[here * known], -1)
    return [(here == expert).nonzero() for expert in range(experts)]


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
    """Rows that are not in use are zero here."""
    dtype, depth = compute_dtype(input, gate_up, down, weights), input.shape[1]
    x = rounded(input.to(dtype), input_dtype, keep_remainders)
    result = torch.zeros(input.shape, dtype=dtype, device=input.device)
    for expert, rows in enumerate(rows_of_experts(ids, expert_map, len(gate_up))):
        token, choice = rows.T
        first = unpack_linear(gate_up[expert], 2 * intermediate, depth).to(dtype)
        second = unpack_linear(down[expert], depth, intermediate).to(dtype)
        gate, up = (x[token] @ first.T).chunk(2, -1)
        gated = ACTIVATIONS[activation](gate) * up
        output = rounded(gated, input_dtype, keep_remainders) @ second.T
        result.index_add_(0, token, output * weights[token, choice].to(dtype)[:, None])
    if rows_in_use is not None:
        result[max(int(rows_in_use), 0) :] = 0
    return result.to(input.dtype)
