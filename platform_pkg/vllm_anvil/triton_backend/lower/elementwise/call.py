# SPDX-License-Identifier: Apache-2.0
"""One element-wise operation with the values it is emitted for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from llvmlite import ir

from vllm_anvil.triton_backend.emit.floats import narrowed, widened
from vllm_anvil.triton_backend.emit.types import lanes_of, llvm_type
from vllm_anvil.triton_backend.emit.vectors import Lanes
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    ScalarType,
    Value,
    element_of,
)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation and its operands as LLVM values of `emit.types.llvm_type`."""

    builder: ir.IRBuilder
    operation: Operation
    values: Sequence[ir.Value]

    @property
    def operands(self) -> list[Lanes]:
        return [Lanes(self.builder, value) for value in self.values]

    def operand_element(self, index: int = 0) -> ElementType:
        return element_of(self.operation.operands[index].type)

    def result_element(self, index: int = 0) -> ElementType:
        return element_of(self.operation.results[index].type)

    @property
    def lanes(self) -> int | None:
        return next(filter(None, (lanes_of(value.type) for value in self.values)), None)

    @property
    def result_type(self) -> ir.Type:
        return llvm_type(self.result_element(), self.lanes)

    def float_operand(self, index: int = 0) -> ScalarType:
        """The type of an operand, which must be a float."""
        return self._float(self.operand_element(index))

    def float_result(self) -> ScalarType:
        return self._float(self.result_element())

    def _float(self, element: ElementType) -> ScalarType:
        if isinstance(element, ScalarType) and element.is_float:
            return element
        self.refuse(f"{element} is no float")

    def computed_operands(self) -> list[Lanes]:
        """The operands in the format they are computed in: floats below float64 as float32."""
        elements = [element_of(operand.type) for operand in self.operation.operands]
        return [
            widened(operand, element)
            if isinstance(element, ScalarType) and element.is_float and element.name != "f64"
            else operand
            for operand, element in zip(self.operands, elements, strict=True)
        ]

    def computed(self, function: Callable[..., Lanes]) -> Lanes:
        """`function` of the operands in float32 or float64, rounded to the type of the result."""
        result = function(*self.computed_operands())
        target = self.result_element()
        if isinstance(target, ScalarType) and target.is_float and target.name != "f64":
            return narrowed(result, target)
        return result

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedKernel(reason, self.operation.name, self.operation.location)


Emitter: TypeAlias = Callable[[Call], Lanes | tuple[Lanes, ...]]


@dataclass(frozen=True, slots=True)
class Handler:
    """How an operation is emitted, and about how many instructions a vector of it takes.

    0 where it is not worth keeping the result rather than computing it again.
    """

    emit: Emitter
    cost: int | Callable[[Operation], int]


def constant_lanes(value: Value) -> list[int] | None:
    """The integers that a value holds in its lanes, where they are known; one for a splat."""
    operation = value.operation
    while operation is not None and operation.name in ("tt.splat", "tt.broadcast"):
        operation = operation.operands[0].operation
    if operation is None or operation.name != "arith.constant":
        return None
    known = operation.attributes["value"]
    return [int(number) for number in (known if isinstance(known, list) else [known])]
