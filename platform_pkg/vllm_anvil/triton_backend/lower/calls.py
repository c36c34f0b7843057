# SPDX-License-Identifier: Apache-2.0
"""Functions that are called, not inlined: `@triton.jit(noinline=True)`.

A result is left where the caller says. The function returns what a kernel returns: whether an
assertion failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.lower.analysis import is_tile
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.ttir.model import Function, Operation, TensorType, Type, element_of

I32 = ir.IntType(32)
POINTER = ir.PointerType()


@dataclass(frozen=True)
class Callee:
    """A lowered function: `(launch, x, y, z, arguments..., places of results...) -> i32`."""

    function: Function
    llvm_function: ir.Function


def passed_type(type_: Type) -> ir.Type:
    return POINTER if isinstance(type_, TensorType) else llvm_type(type_)


def callee_type(function: Function) -> ir.FunctionType:
    arguments = [passed_type(argument.type) for argument in function.arguments]
    places = [POINTER] * len(function.result_types)
    return ir.FunctionType(I32, [POINTER, I32, I32, I32, *arguments, *places])


@eager("tt.call")
def lower_call(lowering: FunctionLowering, operation: Operation) -> None:
    callee: Callee = lowering.callees[operation.attributes["callee"]]
    builder = lowering.builder
    program = lowering.program
    arguments = [
        lowering.materialize(value).pointer if is_tile(value) else lowering.scalar(value)
        for value in operation.operands
    ]
    places: list[ir.Value | Buffer] = []
    for result in operation.results:
        if isinstance(result.type, TensorType):
            places.append(lowering.buffers.take(result.type))
        else:
            places.append(lowering.stack_slot(llvm_type(result.type)))
    pointers = [place.pointer if isinstance(place, Buffer) else place for place in places]
    failed = builder.call(
        callee.llvm_function, [program.launch, *program.identifiers, *arguments, *pointers]
    )
    with builder.if_then(builder.icmp_unsigned("!=", failed, I32(0)), likely=False):
        builder.branch(lowering.failure)
    for result, place in zip(operation.results, places, strict=True):
        if isinstance(place, Buffer):
            lowering.define(result, place)
        else:
            lowering.define(result, builder.load(place, typ=llvm_type(element_of(result.type))))


@eager("tt.return")
def lower_return(lowering: FunctionLowering, operation: Operation) -> None:
    builder = lowering.builder
    for value, place in zip(operation.operands, lowering.result_places, strict=True):
        if isinstance(value.type, TensorType):
            lowering.store_tile(value, Buffer(place, value.type.shape, value.type.element))
        else:
            builder.store(lowering.scalar(value), place)
    builder.ret(I32(0))
