# SPDX-License-Identifier: Apache-2.0
"""Weights in parts that fit into a file or a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor


def parts_of(
    weights: Iterable[tuple[str, Tensor]], most: int | None
) -> Iterator[dict[str, Tensor]]:
    """The named weights in their order, as many at a time as have `most` bytes together, or one
    that has more; None: all at once. Without weights there is no part."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights:
        if part and most is not None and size + weight.nbytes > most:
            yield part
            part, size = {}, 0
        part[name] = weight
        size += weight.nbytes
    if part:
        yield part
