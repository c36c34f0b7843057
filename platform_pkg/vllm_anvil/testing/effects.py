# SPDX-License-Identifier: Apache-2.0
"""What a call may and may not do besides computing the right values.

Each function returns a sentence that says what is wrong, or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vllm_anvil.testing.layouts import Placed
from vllm_anvil.testing.op_case import Arguments


def wrong_names(results: Iterable[str], expected: Iterable[str]) -> str | None:
    given, wanted = set(results), set(expected)
    if given == wanted:
        return None
    return f"it gives {_listed(given)} instead of {_listed(wanted)}"


def wrong_device(returned: Mapping[str, Tensor], device: torch.device) -> str | None:
    for name, value in returned.items():
        if value.device.type != device.type:
            return f"{name} is on {value.device} instead of {device}"
    return None


def shared_memory(returned: Mapping[str, Tensor], arguments: Mapping[str, Tensor]) -> str | None:
    """Results are memory of their own: neither an argument's nor another result's."""
    seen = dict(arguments)
    for name, value in returned.items():
        for other, memory in seen.items():
            if torch._C._is_alias_of(value, memory):  # type: ignore[attr-defined]
                return f"{name} shares memory with {other}"
        seen[name] = value
    return None


def changed_memory(
    placed: Mapping[str, Placed], written: Iterable[str], arguments: Arguments
) -> str | None:
    """Memory around the arguments stays as it is, and so does an argument that is only read."""
    for name, place in placed.items():
        if place.surroundings_changed():
            return f"memory around {name} was changed"
        if name not in written and not same_bits(place.view.cpu(), arguments[name]):
            return f"{name} was changed, and is not an argument that the op writes to"
    return None


def moved_rows(name: str, now: Tensor, before: Tensor) -> str | None:
    """`now` are the rows of a permuted batch, `before` those of the plain one in that order."""
    if same_bits(now, before):
        return None
    same = (now == before) & (now.double().signbit() == before.double().signbit())
    differ = ~(same | ((now != now) & (before != before)))  # any NaN will do
    if not bool(differ.any()):
        return None
    return (
        f"{name} differs in {int(differ.sum())} of {differ.numel()} elements from the same rows of "
        "the batch in its first order, where rows are said to be independent of each other"
    )


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bit patterns."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
