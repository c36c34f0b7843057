# SPDX-License-Identifier: Apache-2.0
"""Calls of ops, and copies of them that keep how their tensors lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def moved(self, device: str) -> Call:
        return Call(self.function, *moved((self.arguments, self.keywords), device))

    def strided(self) -> Call:
        return Call(self.function, *strided((self.arguments, self.keywords)))

    def __call__(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return self.run()

    def run(self) -> Any:
        return self.function(*self.arguments, **self.keywords)

    def tensors(self) -> list[torch.Tensor]:
        return tensors((self.arguments, self.keywords))


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def moved(value: Any, device: str) -> Any:
    """Copies of all tensors, with the same sizes, strides, offsets and shared storages."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to(device, copy=True)
        storage = tensor.detach().untyped_storage()
        if storage._cdata not in storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[storage._cdata] = data.to(device, copy=True).untyped_storage()
        result = torch.empty(0, dtype=tensor.dtype, device=device)
        result.set_(
            storages[storage._cdata], tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        return result.requires_grad_(tensor.requires_grad)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in copies:
                copies[id(leaf)] = copy(leaf)
            return copies[id(leaf)]
        if isinstance(leaf, torch.device):
            return torch.device(device)
        return device if isinstance(leaf, str) and leaf == "cpu" else leaf

    return pytree.tree_map(move, value)


def strided(value: Any) -> Any:
    """Every tensor as every other element of one twice as large, from the second on."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor
        plain = tensor.detach()
        return torch.stack([plain.roll(1), plain], -1)[..., 1].requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, spread, value)


def sharing(of: list[torch.Tensor]) -> list[tuple[int, int]]:
    """By tensor: the first that is the same object, and the first in the same memory."""
    objects = [id(tensor) for tensor in of]
    storages = [tensor.untyped_storage()._cdata for tensor in of]
    return [(objects.index(o), storages.index(s)) for o, s in zip(objects, storages, strict=True)]
