# SPDX-License-Identifier: Apache-2.0
"""Rows of a step, grouped by adapter, where the ops of `vllm_anvil.ops.lora` read them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class TokenGroups:
    """Which rows have which adapter, at addresses that stay: a captured step reads what the last
    `update` wrote.

    Attributes:
        order, starts: as the ops take them.
        some: whether any row has an adapter.
        slots: of the last update, on the host.
    """

    def __init__(self, rows: int, adapters: int, device: torch.device | str) -> None:
        """rows: at most; adapters: places for adapters in the layers."""
        self.order = torch.zeros(rows, dtype=torch.int32, device=device)
        self.starts = torch.zeros(adapters + 1, dtype=torch.int32, device=device)
        self.some = False
        self.slots: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def update(self, slots: NDArray[np.int64]) -> None:
        """slots: the place of each row's adapter, -1 where it has none."""
        self.slots = slots
        self.some = bool((slots >= 0).any())
        order = np.argsort(slots, kind="stable").astype(np.int32)
        places = np.arange(len(self.starts))
        starts = np.searchsorted(slots[order], places).astype(np.int32)
        # Memory of their own: the copies may be made when the next step is prepared already.
        if self.some:
            _copy(order, self.order)
        _copy(starts, self.starts)


def _copy(values: NDArray[np.int32], to: Tensor) -> None:
    to[: len(values)].copy_(torch.from_numpy(values), non_blocking=True)
