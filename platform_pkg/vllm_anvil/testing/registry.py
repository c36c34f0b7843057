# SPDX-License-Identifier: Apache-2.0
"""All op tables: this package's own, and those of other installed packages."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from vllm_anvil.testing.op_case import Op

# An entry point of this group names an iterable of Op, as "module:attribute".
GROUP = "vllm_anvil.op_cases"
DISTRIBUTION = "vllm-anvil"

OWN = (
    *(
        f"vllm_anvil.testing.op_cases.{family}:OPS"
        for family in (
            "norm",
            "activation",
            "softmax",
            "rotary",
            "qk_norm_rotary_write",
            "embedding",
            "attention_states",
            "cache",
            "gemm",
            "packed_gemm",
            "experts",
            "lora",
            "sampling",
        )
    ),
    "anvil_attention.op_cases:OPS",
)


@dataclass(frozen=True)
class Problem:
    """A table, or a part of one, that cannot be run.

    Attributes:
        table: "module:attribute".
        distribution: the installed package that it belongs to.
        message: what is wrong with it.
    """

    table: str
    distribution: str
    message: str

    def __str__(self) -> str:
        return f"op table {self.table} of {self.distribution}: {self.message}"


@dataclass
class Registry:
    """The ops that were found, by qualified name, and what could not be loaded."""

    ops: dict[str, Op] = field(default_factory=dict)
    distributions: dict[str, str] = field(default_factory=dict)  # of each op
    problems: list[Problem] = field(default_factory=list)

    def choose(self, names: Sequence[str]) -> list[Op]:
        """The ops of those names, with or without "anvil::" or another namespace; none: all.

        Raises:
            LookupError: there is no such op; the message lists the choices.
        """
        if not names:
            return list(self.ops.values())
        chosen: dict[str, Op] = {}
        for name in names:
            found = {q: op for q, op in self.ops.items() if name in (q, op.name)}
            if not found:
                known = ", ".join(sorted(op.name for op in self.ops.values()))
                broken = "".join(f"; {problem}" for problem in self.problems)
                raise LookupError(f"there is no op {name!r}; there are {known}{broken}")
            chosen |= found
        return list(chosen.values())

    def add(self, table: str, distribution: str, load: Callable[[], Any]) -> None:
        """Adds the ops of one table; what is wrong with it becomes a problem of the registry."""

        def report(message: str) -> None:
            self.problems.append(Problem(table, distribution, message))

        try:
            entries = tuple(_iterable(load()))
        except Exception as error:
            report(_cause(error))
            return
        if not entries:
            report("it has no ops")
        for entry in entries:
            if not isinstance(entry, Op):
                report(f"{entry!r} is no vllm_anvil.testing.op_case.Op")
            elif entry.qualified_name in self.ops:
                other = self.distributions[entry.qualified_name]
                report(f"{other} has an op {entry.qualified_name} already")
            elif (problem := _fault(entry)) is not None:
                report(f"{entry.qualified_name}: {problem}")
            else:
                self.ops[entry.qualified_name] = entry
                self.distributions[entry.qualified_name] = distribution


def load(own: Iterable[str] = OWN) -> Registry:
    """Imports every table. One that is broken is a problem of the registry, and no exception."""
    registry = Registry()
    for table in own:
        registry.add(table, DISTRIBUTION, lambda table=table: _attribute(table))  # type: ignore[misc]
    found = metadata.entry_points(group=GROUP)
    for entry in sorted(found, key=lambda e: (e.dist.name if e.dist else "", e.name)):
        distribution = entry.dist.name if entry.dist else "an unknown package"
        registry.add(entry.value, distribution, entry.load)
    return registry


def _attribute(table: str) -> Any:
    module, attribute = table.split(":")
    return getattr(importlib.import_module(module), attribute)


def _iterable(value: Any) -> Iterable[Any]:
    if isinstance(value, Op) or not isinstance(value, Iterable):
        raise TypeError(f"it is {type(value).__name__}, and must be an iterable of Op")
    return value


def _fault(op: Op) -> str | None:
    names = [case.name for case in op.cases]
    if not names:
        return "it has no cases"
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two cases are called {twice[0]}" if twice else None


def _cause(error: Exception) -> str:
    """The exception, and the line outside of this package and importlib that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    where = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {error}{where}"
