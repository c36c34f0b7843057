# SPDX-License-Identifier: Apache-2.0
"""How an op is described: the one description that parity, tests, documents and benchmarks read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]

# Relative rounding of a result that was computed exactly and then stored in this dtype: one unit
# in the last place, twice the rounding error.
UNIT = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
}


def changed(arguments: Arguments, change: Callable[[Tensor], Any]) -> Arguments:
    """The arguments with `change` made to each tensor, also to those that an argument lists."""

    def apply(value: Any) -> Any:
        if isinstance(value, list):
            return [apply(one) for one in value]
        return change(value) if isinstance(value, Tensor) else value

    return {name: apply(value) for name, value in arguments.items()}


class Inputs:
    """Random arguments of a case, on the CPU, the same for every run of it."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Independent normal values of mean 0."""
        return (torch.randn(shape, generator=self.generator) * scale).to(dtype)

    def uniform(
        self, *shape: int, dtype: torch.dtype = torch.float32, low: float = 0.0, high: float = 1.0
    ) -> Tensor:
        values = torch.rand(shape, generator=self.generator)
        return (low + (high - low) * values).to(dtype)

    def integers(self, *shape: int, high: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers of [0, high)."""
        return torch.randint(high, shape, generator=self.generator, dtype=dtype)

    def distinct(self, count: int, high: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """[count] different integers of [0, high), in random order."""
        return torch.randperm(high, generator=self.generator)[:count].to(dtype)

    def bits(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Any bit patterns, NaNs among them: for ops that only move elements."""
        rows = (*shape[:-1], shape[-1] * dtype.itemsize)
        values = torch.randint(256, rows, generator=self.generator, dtype=torch.uint8)
        return values.view(dtype)


@dataclass(frozen=True)
class Case:
    """One call of an op.

    Args:
        name: unique among the op's cases, such as "bfloat16-rows7-hidden130".
        make: the arguments by name, tensors on the CPU. Called anew for each run.
        kind: "ordinary", "empty", "extreme" (huge, tiny and zero values) or "special" (NaN and
            infinities).
        raises: what the op and its reference must raise, with every argument left as it was: for
            calls that must be refused. None: the call succeeds.
    """

    name: str
    make: Callable[[Inputs], Arguments]
    kind: str = "ordinary"
    raises: type[Exception] | None = None

    def arguments(self) -> Arguments:
        # A string's own hash differs between processes.
        seed = sum((i + 1) * byte for i, byte in enumerate(self.name.encode()))
        return self.make(Inputs(seed))


def refused(
    case: Case, name: str, change: Callable[[Arguments], Arguments], error: type[Exception]
) -> Case:
    """A case like another, with arguments that the op must refuse."""
    return Case(name, lambda inputs: change(case.make(inputs)), raises=error)


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from float64's: `units` units in the last place, and `absolute` more.

    A unit is UNIT[dtype] * |expected|, element by element, where dtype is the result's; below its
    normal numbers it is the smallest number's. `units` 0 and `absolute` 0: the same value, zeros
    with their sign."""

    units: float = 1.0
    absolute: float = 0.0

    def allowed(self, expected: Tensor, dtype: torch.dtype, arguments: Arguments) -> Tensor:
        if dtype not in UNIT:
            return torch.full_like(expected, self.absolute, dtype=torch.float64)
        size = expected.abs().double().clamp_min(torch.finfo(dtype).smallest_normal)
        return size * (self.units * UNIT[dtype]) + self.absolute


# Computes what is allowed for one result: (float64 expected, dtype of the result, float64
# arguments) -> a tensor that broadcasts with it. For ops whose error grows with their inputs.
AllowedError = Callable[[Tensor, torch.dtype, Arguments], Tensor]


@dataclass(frozen=True)
class Op:
    """An op and everything that is known about it.

    Results are compared by name: "result" (or "result0", "result1" of a tuple) for what the op
    returns, and an argument's name for each tensor that it writes to.

    Args:
        name: its name in torch.ops.<namespace>; also the stem of its files.
        family: groups ops in tables: "norm", "rotary", ...
        reference: plain torch, the op's signature and effects (vllm_anvil.references says which).
            From float64 arguments it tells the values, from the case's own arguments the dtypes.
        cases: the calls that are made.
        namespace: of torch.ops.
        call: runs the op, given its arguments by name; default: torch.ops.<namespace>.<name>.
        batch: arguments and results whose rows are independent of each other -> the dimension that
            lists them. Rows of all of them are permuted together, and the results named must follow
            bit for bit.
        views: arguments that may be any view of their memory whose last dimension is contiguous.
            Every layout of vllm_anvil.testing.layouts is tried on them.
        allowed: how far results may be off, for all of them or by name.
        moved_bytes: bytes that a call must read and write at least, given its arguments.
        operations: arithmetic operations that a call must do at least.
        peers: other implementations with the same arguments, effects and results, by name, such as
            "engine". A peer raises NotImplementedError for arguments that it does not take. Peers
            run on the CPU; their errors are shown and do not count.
        unfused: for an op that does the work of several: the same by separate ops, as a program
            without this one would call them. It takes the op's arguments and returns the results by
            name; where it leaves them, and how it rounds in between, is its own. Benchmarks time
            it on the op's device.
        benchmarks: calls of realistic sizes, for timing; default: the largest ordinary cases.
        writes: arguments that the op writes to; default: those that its schema marks, and none
            for a `call` whose name is no registered op.
    """

    name: str
    family: str
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    namespace: str = "anvil"
    call: Callable[..., Any] | None = None
    batch: Mapping[str, int] = field(default_factory=dict)
    views: tuple[str, ...] = ()
    allowed: Tolerance | AllowedError | Mapping[str, Tolerance | AllowedError] = Tolerance()
    moved_bytes: Callable[[Arguments], int] | None = None
    operations: Callable[[Arguments], int] | None = None
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    unfused: Callable[..., Mapping[str, Tensor]] | None = None
    benchmarks: tuple[Case, ...] = ()
    writes: tuple[str, ...] | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}::{self.name}"

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The registered op. Raises AttributeError where it is not registered."""
        return getattr(getattr(torch.ops, self.namespace), self.name).default

    def run(self, arguments: Arguments) -> Any:
        return (self.call or self.overload)(**arguments)

    def written(self) -> tuple[str, ...]:
        """Names of the arguments that the op writes to."""
        if self.writes is not None:
            return self.writes
        try:
            schema = self.overload._schema
        except AttributeError:
            if self.call is not None:
                return ()
            raise AttributeError(
                f"{self.qualified_name} is not registered, and its Op has no call"
            ) from None
        return tuple(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        )

    def allowed_error(self, result: str) -> AllowedError:
        chosen = self.allowed
        if isinstance(chosen, Mapping):
            chosen = chosen[result]
        return chosen.allowed if isinstance(chosen, Tolerance) else chosen
