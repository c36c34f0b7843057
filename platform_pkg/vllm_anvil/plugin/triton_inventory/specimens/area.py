# SPDX-License-Identifier: Apache-2.0
"""What a table of specimens consists of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_anvil.plugin.triton_inventory.discovery import TritonFunction


@dataclass(frozen=True)
class Dtype:
    """The attribute `name` of `triton.language`, for a constant that is a type."""

    name: str


@dataclass(frozen=True)
class Area:
    """The kernels of some modules, which are given by how their names begin.

    `arguments` says what arguments are, by a pattern for their whole name, for all kernels of the
    area; the first match counts. `kernels` says it of single ones, by "module:name" without the
    package; a tuple where the engine launches one in ways that differ in more than sizes. Values
    are names of types ("*fp32", "i32"), or constants; a constant for an argument that is no
    constexpr is one that Triton compiles in, such as None.
    """

    name: str
    modules: tuple[str, ...]
    arguments: tuple[tuple[str, Any], ...] = ()
    kernels: Mapping[str, Mapping[str, Any] | tuple[Mapping[str, Any], ...]] = field(
        default_factory=dict
    )

    def has(self, module: str) -> bool:
        return module.partition(".")[2].startswith(self.modules)

    def exceptions(self, kernel: TritonFunction) -> list[dict[str, Any]]:
        """What the tables say about the kernel's arguments, for each of its specimens."""
        found: dict[str, Any] = {}
        for name in kernel.arguments:
            for pattern, value in self.arguments:
                if re.fullmatch(pattern, name) is not None:
                    found[name] = value
                    break
        return [found | dict(one) for one in self.own(kernel)]

    def own(self, kernel: TritonFunction) -> tuple[Mapping[str, Any], ...]:
        """What `kernels` says about a kernel, for each of its specimens."""
        own = self.kernels.get(kernel.name.partition(".")[2], {})
        return own if isinstance(own, tuple) else (own,)


def arguments(values: Mapping[str, str] | None = None, **constants: Any) -> dict[str, Any]:
    """Arguments by name, from types with the names of all that are of one, and constants."""
    typed = {name: type_ for type_, names in (values or {}).items() for name in names.split()}
    return typed | constants
