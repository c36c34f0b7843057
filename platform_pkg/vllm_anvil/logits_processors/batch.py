# SPDX-License-Identifier: Apache-2.0
"""What a logits processor needs of a step: which rows are its own, and the tokens before each.

Nothing here waits for the device: what decides is known on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState


def rows_of(ctx: LogitsContext, active: np.ndarray) -> Tensor | None:
    """Numbers of the logits rows of requests that are active, int64 on the device.

    Args:
        active: [max_num_reqs] whether the request in a slot is one.

    Where a request may have several rows, all rows are returned as soon as one request is active:
    on the host it is not known whose they are. None where no request is active.
    """
    chosen = np.flatnonzero(active[ctx.idx_mapping_np])
    if not chosen.size:
        return None
    device, rows = ctx.pos.device, ctx.pos.shape[0]
    if rows != ctx.idx_mapping_np.size or chosen.size == rows:
        return torch.arange(rows, device=device)
    return async_tensor_h2d(chosen.tolist(), device=device, dtype=torch.int64)


def tokens_before(
    req_states: LogitsProcRequestState, ctx: LogitsContext, rows: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The last `count` tokens before what is sampled in each of `rows`, the newest first.

    Returns (tokens, positions), int64 [len(rows), count]. A position below 0 is before the first
    token of the request, and what stands in its place means nothing.
    """
    back = torch.arange(count, device=rows.device)
    positions = ctx.pos[rows].long().unsqueeze(1) - back
    slots = ctx.expanded_idx_mapping[rows].long().unsqueeze(1)
    committed = req_states.all_token_ids.gpu[slots, positions.clamp(min=0)].long()
    if ctx.pos.shape[0] == ctx.idx_mapping_np.size:
        return committed, positions
    # Tokens that were drafted in this step are in no history yet: each is the input of one of the
    # request's rows, which lie one after the other.
    drafted = back < ctx.expanded_local_pos[rows].unsqueeze(1)
    drafts = ctx.input_ids[(rows.unsqueeze(1) - back).clamp(min=0)].long()
    return torch.where(drafted, drafts, committed), positions


def forbid(logits: Tensor, rows: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Sets `logits[rows[i], tokens[i, j]]` to -inf where `where[i, j]` holds, in place.

    A token may stand several times in a row of `tokens`: one place that holds decides. Numbers that
    are no tokens of the vocabulary are passed over: the engine has -1 for drafts that do not count.
    """
    vocabulary = logits.shape[1]
    penalty = torch.zeros(where.shape, dtype=logits.dtype, device=logits.device)
    penalty.masked_fill_(where & (tokens >= 0) & (tokens < vocabulary), float("-inf"))
    tokens = tokens.clamp(0, vocabulary - 1)
    logits.index_put_((rows.unsqueeze(1).expand_as(tokens), tokens), penalty, accumulate=True)
