# SPDX-License-Identifier: Apache-2.0
"""The plain-torch reference as an implementation of the contract."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .contract import AttentionImplementation
from .reference import paged_attention


def attend(
    *,
    scale: float,
    output: Tensor,
    max_query_len: int = 0,
    max_seq_len: int = 0,
    workspace: Tensor | None = None,
    **arguments: Any,
) -> None:
    """`reference.paged_attention` with the arguments of `contract.AttentionCall`."""
    paged_attention(scale=scale, output=output, **arguments)


reference_attention = AttentionImplementation(name="reference", function=attend)
