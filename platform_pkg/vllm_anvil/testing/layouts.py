# SPDX-License-Identifier: Apache-2.0
"""The same values at other places in memory.

A layout puts a tensor's values into a larger buffer and returns a view of them. All memory around
the view holds a pattern that must still be there after the op has run, and that spoils a result
into which it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Bytes of the pattern: as a float of any width it is a quiet NaN.
PATTERN = 0xFF


@dataclass(frozen=True)
class Placed:
    """A view and the buffer around it, both on the target device."""

    view: Tensor
    buffer: Tensor

    def surroundings_changed(self) -> bool:
        """Whether any byte of the buffer outside the view has changed."""
        # As bytes: copying a bool makes 1 of any pattern.
        buffer = self.buffer.view(torch.uint8).to("cpu", copy=True).view(self.buffer.dtype)
        inside = buffer.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        inside.view(_BITS[buffer.element_size()]).fill_(-1)
        return bool((buffer.view(torch.uint8) != PATTERN).any())


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Layout = Callable[[Tensor], Tensor]  # values -> a view of a fresh buffer, of their shape and dtype


def _fresh(shape: tuple[int, ...], like: Tensor) -> Tensor:
    count = torch.Size(shape).numel() * like.element_size()
    return torch.full((count,), PATTERN, dtype=torch.uint8).view(like.dtype).view(shape)


def _contiguous(values: Tensor) -> Tensor:
    """Contiguous and aligned, with at least one entry of the first dimension of other memory on
    both sides."""
    row = values[:1].numel() if values.dim() else 1
    line = 64 // values.element_size()
    margin = line * (1 + row // line)
    buffer = _fresh((2 * margin + values.numel(),), values)
    return buffer[margin : margin + values.numel()].view(values.shape)


def _offset(values: Tensor) -> Tensor:
    """Begins one row and three elements into its memory, with rows of odd length."""
    *rows, last = values.shape
    buffer = _fresh((*(size + 1 for size in rows), last + 7), values)
    return buffer[(*(slice(1, 1 + size) for size in rows), slice(3, 3 + last))]


def _every_second(values: Tensor) -> Tensor:
    """Every second entry of the first dimension."""
    buffer = _fresh((2 * values.shape[0] + 1, *values.shape[1:]), values)
    return buffer[1::2]


def _transposed(values: Tensor) -> Tensor:
    """The first two dimensions in the other order in memory; the last stays contiguous."""
    order = (1, 0, *range(2, values.dim()))
    return _fresh(tuple(values.shape[i] for i in order), values).permute(order)


# Name -> (layout, the number of dimensions that it needs).
LAYOUTS: dict[str, tuple[Layout, int]] = {
    "contiguous": (_contiguous, 1),
    "offset": (_offset, 1),
    "every_second": (_every_second, 2),
    "transposed": (_transposed, 3),
}


def place(values: Tensor, layout: str, device: torch.device | str) -> Placed:
    """`values` (on the CPU) in a buffer of their own on `device`.

    A tensor with too few dimensions for the layout is made contiguous instead.
    """
    make, dimensions = LAYOUTS[layout]
    view = (make if values.dim() >= dimensions else _contiguous)(values)
    view.copy_(values)
    whole = torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())
    buffer = whole.to(device, copy=True).view(values.dtype)
    return Placed(buffer.as_strided(view.shape, view.stride(), view.storage_offset()), buffer)
