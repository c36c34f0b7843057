# SPDX-License-Identifier: Apache-2.0
"""Ops on logits before a token is sampled."""

import torch
from torch import Tensor

import vllm_anvil.ops  # noqa: F401  the fake below needs the op to exist


def topk_topp(
    logits: Tensor,
    k: Tensor | None = None,
    p: Tensor | None = None,
    mask_value: float = float("-inf"),
) -> None:
    """Masks each row to its ``k`` greatest logits and, of those, to the fewest most likely ones
    whose probabilities (among those) sum to at least ``p``.

    Of tokens that tie for the last place as many as are needed are kept, lowest index first. A row
    depends neither on the other rows nor on the number of threads.

    Logits of -inf and NaN are never among the greatest. A row that loses nothing else keeps them
    too. A row whose probabilities are undefined, because of +inf or because there is a NaN that no
    top-k removed, is left as it is where top-p applies.

    Args:
        logits: ``[rows, vocab_size]`` float32, rows contiguous and at any distance, **written**.
        k: ``[rows]`` int32, contiguous. No top-k for a row where it is at least ``vocab_size``;
            values below 1 mean 1.
        p: ``[rows]`` float32, contiguous. No top-p for a row where it is 1 or more, or NaN; at 0
            and below the most likely token is left.
        mask_value: what the tokens that are dropped get.

    Raises:
        TypeError: a dtype is another one.
        ValueError: shapes contradict one another, devices differ, ``logits`` has rows that are not
            contiguous, or shares memory with ``k`` or ``p``.
    """
    torch.ops.anvil.topk_topp(logits, k, p, mask_value)


@torch.library.register_fake("anvil::topk_topp")
def _(logits: Tensor, k: Tensor | None, p: Tensor | None, mask_value: float) -> None:
    return None
