# SPDX-License-Identifier: Apache-2.0
"""References of vllm_anvil.ops.sampling, by sorting."""

import torch
from torch import Tensor


def topk_topp(
    logits: Tensor, k: Tensor | None, p: Tensor | None, mask_value: float = float("-inf")
) -> None:
    for i, row in enumerate(logits):
        kept = len(row) if k is None else int(k[i])
        row.copy_(_mask(row, kept, 1.0 if p is None else float(p[i]), mask_value))


def _mask(row: Tensor, k: int, p: float, mask_value: float) -> Tensor:
    candidates = (row > -torch.inf).nonzero().squeeze(1)
    order = candidates[torch.sort(row[candidates], descending=True, stable=True).indices]
    kept = order[: max(k, 1)] if k < len(order) else order
    if p < 1.0 and len(kept):
        # NaN spoils the sum unless top-k is what removes it.
        uncut = len(kept) == len(order)
        probabilities = torch.softmax(row[kept].double(), 0)
        if probabilities.isnan().any() or (uncut and row.isnan().any()):
            return row.clone()
        below = (probabilities.cumsum(0) < p).sum()
        kept = kept[: min(int(below) + 1, len(kept))]
    if len(kept) == len(order):
        return row.clone()
    result = torch.full_like(row, mask_value)
    result[kept] = row[kept]
    return result
