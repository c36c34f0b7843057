# SPDX-License-Identifier: Apache-2.0
"""The class that vLLM's adapter layers call for their products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from vllm_anvil.ops.lora import lora_expand, lora_shrink
from vllm_anvil.plugin.lora import matrices
from vllm_anvil.plugin.lora.token_groups import TokenGroups

if TYPE_CHECKING:
    from vllm.lora.layers import LoRAMapping

Stacked = Tensor | Sequence[Tensor]


class AnvilPunicaWrapper(PunicaWrapperBase):
    """Adds adapters' products to those of the layers, token by token, in float32.

    While no row of a step has an adapter, nothing is launched; a graph that is captured then has
    none of it either, and the engine replays it for such steps only.
    """

    def __init__(
        self,
        max_num_batched_tokens: int,
        max_batches: int,
        device: torch.device | str,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device, **kwargs)
        adapters = kwargs["lora_config"].max_loras
        self.tokens = TokenGroups(max_num_batched_tokens, adapters, device)
        # Rows of logits: with speculation there are several for a request.
        self.samples = TokenGroups(max_num_batched_tokens, adapters, device)

    # ------------------------------------------------------------------ once a step

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **kwargs: Any,
    ) -> None:
        """Notes which adapter each token and each row of logits has.

        mapping: ids of adapters, 0 for none; lora_index_to_id: the id in each place of the layers.
        """
        places = {number: place for place, number in enumerate(lora_index_to_id) if number}
        places[0] = -1
        tokens = _places(mapping.index_mapping, places)
        samples = _places(mapping.prompt_mapping, places)
        self.tokens.update(tokens)
        self.samples.update(samples)
        self.is_prefill = mapping.is_prefill
        self.no_lora = not self.tokens.some
        # What layers read that are not here: rows of the embeddings' table, the place of each row.
        self._fill(self._token_lora_indices, tokens)
        self._fill(self._sampler_indices, samples)
        self._fill(self._embeddings_indices, np.maximum(tokens, 0) * vocab_size)
        self.indices_len = [len(tokens), len(samples), None, len(tokens)]

    @contextlib.contextmanager
    def logits_of_tokens(self, begin: int, end: int) -> Iterator[None]:
        """Inside, rows of logits are those of the step's tokens [begin, end)."""
        sampled = self.samples.slots
        self.samples.update(self.tokens.slots[begin:end])
        try:
            yield
        finally:
            self.samples.update(sampled)

    @staticmethod
    def _fill(buffer: Tensor, values: NDArray[np.int64]) -> None:
        buffer[: len(values)].copy_(torch.from_numpy(values), non_blocking=True)

    # ------------------------------------------------------------------ products

    def add_shrink(
        self,
        y: tuple[Tensor, ...] | Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        scale: float,
        **kwargs: Any,
    ) -> None:
        """y[slice] = scale * (x @ A[slice]^T), each row with its own adapter's A.

        y: float32 [slices, rows, rank]. Rows without an adapter stay as they are."""
        if self.tokens.some:
            self._shrink(self.tokens, y, x.flatten(0, -2), lora_a_stacked, scale)

    def add_expand(
        self,
        y: Tensor,
        x: tuple[Tensor, ...] | Tensor,
        lora_b_stacked: tuple[Tensor, ...],
        output_slices: tuple[int, ...],
        offset_start: int = 0,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y[:, columns of the slice] += x[slice] @ B[slice]^T, columns from offset_start on.

        x: float32 [slices, rows, rank]."""
        if self.tokens.some:
            self._expand(self.tokens, y.flatten(0, -2), x, lora_b_stacked, offset_start, add_inputs)

    def add_lora_embedding(
        self,
        y: Tensor,
        x: Tensor,
        lora_b_stacked: Tensor,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y += x @ B^T. x: [rows, rank], the rows that the layer looked up in A."""
        if self.tokens.some:
            shrunk = x.float().unsqueeze(0)
            self._expand(self.tokens, y, shrunk, lora_b_stacked, 0, add_inputs)

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        add_inputs: bool = True,
        buffer: tuple[Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """y += scale * (x @ A^T) @ B^T for each slice of y's columns, in place."""
        if self.tokens.some:
            self._add(self.tokens, y, x, lora_a_stacked, lora_b_stacked, scale, add_inputs)

    def add_lora_logits(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: Tensor,
        lora_b_stacked: Tensor,
        scale: float,
        *,
        buffer: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """The same for logits, whose rows are those that are sampled from."""
        if self.samples.some:
            self._add(self.samples, y, x, lora_a_stacked, lora_b_stacked, scale, True)

    def apply_lora_full_linear(
        self,
        y: Tensor,
        x: Tensor,
        weight_stacked: Tensor,
        bias_stacked: Tensor,
        module_enabled: Tensor,
    ) -> None:
        """y = x @ weight^T + bias in the rows whose adapter has a head of its own."""
        if not self.samples.some:
            return
        whole = torch.zeros(1, *y.shape, dtype=torch.float32, device=y.device)
        self._shrink(self.samples, whole, x, weight_stacked, 1.0)
        y.copy_(self._select_full_linear_output(y, whole[0], bias_stacked, module_enabled))

    def _add(
        self,
        rows: TokenGroups,
        y: Tensor,
        x: Tensor,
        a: Stacked,
        b: Stacked,
        scale: float,
        add: bool,
    ) -> None:
        x, y = x.flatten(0, -2), y.flatten(0, -2)
        first, slices = (a, 1) if isinstance(a, Tensor) else (a[0], len(a))
        shrunk = torch.empty(
            slices, x.shape[0], first.shape[-2], dtype=torch.float32, device=x.device
        )
        self._shrink(rows, shrunk, x, a, scale)
        self._expand(rows, y, shrunk, b, 0, add)

    @staticmethod
    def _shrink(
        rows: TokenGroups, shrunk: tuple[Tensor, ...] | Tensor, x: Tensor, a: Stacked, scale: float
    ) -> None:
        layer = matrices.of(a)
        if isinstance(shrunk, Tensor):
            lora_shrink(x, layer.weights, rows.order, rows.starts, shrunk, scale, layer.ranks)
            return
        for number, (one, weight) in enumerate(zip(shrunk, layer.weights, strict=True)):
            ranks = None if layer.ranks is None else layer.ranks[number : number + 1]
            lora_shrink(x, [weight], rows.order, rows.starts, one.unsqueeze(0), scale, ranks)

    @staticmethod
    def _expand(
        rows: TokenGroups,
        y: Tensor,
        shrunk: tuple[Tensor, ...] | Tensor,
        b: Stacked,
        offset: int,
        add: bool,
    ) -> None:
        layer = matrices.of(b)
        together = shrunk if isinstance(shrunk, Tensor) else torch.stack(tuple(shrunk))
        lora_expand(together, layer.weights, rows.order, rows.starts, y, offset, add, layer.ranks)


def _places(ids: Sequence[int], places: dict[int, int]) -> NDArray[np.int64]:
    """The place of each id."""
    numbers, inverse = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    return np.array([places[int(one)] for one in numbers], dtype=np.int64)[inverse]
