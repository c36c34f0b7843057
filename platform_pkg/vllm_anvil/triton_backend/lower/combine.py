# SPDX-License-Identifier: Apache-2.0
"""The function by which a reduction or a scan combines two elements, on vectors."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.emit.constants import constant, splat
from vllm_anvil.triton_backend.emit.types import lanes_of
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower import elementwise
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.ttir.model import Block, Value, element_of


def combined(
    lowering: FunctionLowering,
    block: Block,
    first: Sequence[ir.Value],
    second: Sequence[ir.Value],
) -> list[ir.Value]:
    """What the block makes of two elements (of one value per operand each), lane by lane.

    All are vectors of as many lanes, or all scalars; so is the result.
    """
    builder = lowering.builder
    lanes = lanes_of(first[0].type)
    values: dict[Value, ir.Value] = dict(zip(block.arguments, (*first, *second), strict=True))

    def value_of(value: Value) -> ir.Value:
        if value not in values:
            scalar = lowering.scalar(value)  # of the function around
            values[value] = scalar if lanes is None else splat(builder, scalar, lanes)
        return values[value]

    for operation in block.operations[:-1]:
        if operation.name == "arith.constant":
            number = constant(element_of(operation.result.type), operation.attributes["value"])
            values[operation.result] = number if lanes is None else splat(builder, number, lanes)
            continue
        if not elementwise.is_elementwise(operation.name):
            raise UnsupportedKernel(
                "not supported inside a reduction or scan", operation.name, operation.location
            )
        operands = [value_of(value) for value in operation.operands]
        made = elementwise.emit_all(builder, operation, operands)
        values.update(zip(operation.results, made, strict=True))
    return [value_of(value) for value in block.operations[-1].operands]
