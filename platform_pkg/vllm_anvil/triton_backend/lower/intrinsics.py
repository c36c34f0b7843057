# SPDX-License-Identifier: Apache-2.0
"""LLVM's operations on memory under a mask, and on whole vectors.

Nothing is assumed of the alignment of a kernel's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import splat

I1 = ir.IntType(1)
I32 = ir.IntType(32)
POINTER = ir.PointerType()
_FLOAT_NAMES = {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}


def type_suffix(type_: ir.Type) -> str:
    """How overloaded intrinsics name a type."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{type_suffix(type_.element)}"
    if isinstance(type_, ir.PointerType):
        return "p0"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return _FLOAT_NAMES[type(type_)]


def call_intrinsic(
    builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Value]
) -> ir.Value:
    """Calls `name`, whose suffix is given, as a function of these types."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        type_ = ir.FunctionType(result, [argument.type for argument in arguments])
        function = ir.Function(module, type_, name)
    return builder.call(function, arguments)


def all_lanes(count: int) -> ir.Constant:
    return splat(ir.VectorType(I1, count), 1)


def masked_load(
    builder: ir.IRBuilder, type_: ir.VectorType, pointer: ir.Value, mask: ir.Value, other: ir.Value
) -> ir.Value:
    """Consecutive elements; lanes that the mask leaves out are `other`'s and read nothing."""
    name = f"llvm.masked.load.{type_suffix(type_)}.p0"
    return call_intrinsic(builder, name, type_, [pointer, I32(1), mask, other])


def masked_store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, mask: ir.Value) -> None:
    name = f"llvm.masked.store.{type_suffix(value.type)}.p0"
    call_intrinsic(builder, name, ir.VoidType(), [value, pointer, I32(1), mask])


def gather(
    builder: ir.IRBuilder,
    element: ir.Type,
    pointers: ir.Value,
    mask: ir.Value | None = None,
    other: ir.Value | None = None,
) -> ir.Value:
    count = pointers.type.count
    type_ = ir.VectorType(element, count)
    mask = all_lanes(count) if mask is None else mask
    other = ir.Constant(type_, ir.Undefined) if other is None else other
    name = f"llvm.masked.gather.{type_suffix(type_)}.{type_suffix(pointers.type)}"
    return call_intrinsic(builder, name, type_, [pointers, I32(1), mask, other])


def scatter(
    builder: ir.IRBuilder, value: ir.Value, pointers: ir.Value, mask: ir.Value | None = None
) -> None:
    """Where lanes have the same address, the last is stored."""
    mask = all_lanes(pointers.type.count) if mask is None else mask
    name = f"llvm.masked.scatter.{type_suffix(value.type)}.{type_suffix(pointers.type)}"
    call_intrinsic(builder, name, ir.VoidType(), [value, pointers, I32(1), mask])


def any_lane(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """Whether any lane of a vector of booleans is true; of a scalar, the scalar."""
    if not isinstance(mask.type, ir.VectorType):
        return mask
    return call_intrinsic(builder, f"llvm.vector.reduce.or.v{mask.type.count}i1", I1, [mask])


def shuffled(builder: ir.IRBuilder, vector: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """The named lanes of a vector, in that order."""
    picks = ir.Constant(ir.VectorType(I32, len(lanes)), [I32(lane) for lane in lanes])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), picks)
