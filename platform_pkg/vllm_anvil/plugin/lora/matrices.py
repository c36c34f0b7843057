# SPDX-License-Identifier: Apache-2.0
"""The matrices of adapter layers, as the ops of `vllm_anvil.ops.lora` want them.

vLLM's layers keep A as [adapters, 1, rank, depth] and B as [adapters, 1, columns, rank], one tensor
for each projection they hold. The device streams B column by column, so that its memory is laid out
[adapters, 1, rank, columns]: the tensor is a view of that, and whoever writes to it need not know.
How many ranks of each adapter are in use is noted when an adapter is set: a step then reads nothing
of layers that an adapter does not target, nor of ranks that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class Matrices:
    """What one layer has for all adapters.

    Attributes:
        weights: A or B of each projection, [adapters, rank, depth] or [adapters, columns, rank].
        ranks: int32 [projections, adapters] on the device, in use; None: all are.
    """

    weights: list[Tensor]
    ranks: Tensor | None


# By the first of the tensors that a layer passes on.
_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def of(stacked: Tensor | Sequence[Tensor]) -> Matrices:
    """The matrices that a layer passes to its wrapper: one tensor, or one for each projection."""
    tensors = [stacked] if isinstance(stacked, Tensor) else list(stacked)
    known: Matrices | None = _known.get(tensors[0])
    return known or Matrices([one.squeeze(1) for one in tensors], None)


def prepare(layer: Any) -> None:
    """Lays out the B matrices of a layer of vLLM's, and notes from now on which of its ranks are in
    use."""
    a, b = _tensors(layer.lora_a_stacked), _tensors(layer.lora_b_stacked)
    b = [_by_columns(one) for one in b]
    layer.lora_b_stacked = tuple(b) if isinstance(layer.lora_b_stacked, tuple) else b[0]
    adapters, rank = b[0].shape[0], b[0].shape[-1]
    ranks = torch.zeros(len(b), adapters, dtype=torch.int32, device=b[0].device)
    _known[b[0]] = Matrices([one.squeeze(1) for one in b], ranks)
    # An embedding's A is a table to look rows up in; of a sharded layer, A has a part of the ranks.
    if a[0].dim() == 4:
        whole = a[0].shape[2] == rank
        _known[a[0]] = Matrices([one.squeeze(1) for one in a], ranks if whole else None)
    for name in ("set_lora", "reset_lora"):
        setattr(layer, name, partial(_and_count, getattr(layer, name), b, ranks))


def _and_count(
    change: Callable[..., Any],
    b: list[Tensor],
    ranks: Tensor,
    index: int,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Changes an adapter of a layer, then counts its ranks up to the last whose column of B has
    something else than zeros."""
    change(index, *args, **kwargs)
    for projection, one in enumerate(b):
        used = (one[index, 0] != 0).any(0)
        numbers = torch.arange(1, len(used) + 1, dtype=torch.int32, device=used.device)
        ranks[projection, index] = (numbers * used).max()


def _by_columns(b: Tensor) -> Tensor:
    return b.mT.contiguous().mT


def _tensors(stacked: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return list(stacked) if isinstance(stacked, tuple) else [stacked]
