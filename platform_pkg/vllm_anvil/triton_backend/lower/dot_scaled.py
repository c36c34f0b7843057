# SPDX-License-Identifier: Apache-2.0
"""Matrix products of operands in microscaling formats (OCP MX): narrow floats, and a power of two
that scales each group of them along the inner dimension.

Both are widened to float32, which holds every such number exactly, and multiplied there.
"""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import splat, with_scalar
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.dot import F32, add_product, converted_lanes
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import gather
from vllm_anvil.triton_backend.lower.lanes import Lanes
from vllm_anvil.triton_backend.lower.loops import each_chunk
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.shape import global_constant, shape_of
from vllm_anvil.triton_backend.lower.tile_memory import store_chunk
from vllm_anvil.triton_backend.ttir.model import (
    Operation,
    ScalarType,
    TensorType,
    Value,
    element_of,
)

I32 = ir.IntType(32)
FLOAT = ir.FloatType()
# The elements that a format names; `e2m1` has none, two of it are a byte.
_ELEMENTS = {
    "e4m3": ScalarType("f8E4M3FN"),
    "e5m2": ScalarType("f8E5M2"),
    "bf16": ScalarType("bf16"),
    "fp16": ScalarType("f16"),
}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@eager("tt.dot_scaled")
def lower_dot_scaled(lowering: FunctionLowering, operation: Operation) -> None:
    a, b, c, *scales = operation.operands
    attributes = operation.attributes
    if not attributes.get("lhs_k_pack", True) or not attributes.get("rhs_k_pack", True):
        raise UnsupportedKernel("elements that are not packed along the inner dimension")
    a_scale, b_scale = (scales.pop(0) if has else None for has in attributes["scaled"])
    left = _widened(lowering, a, str(attributes["lhs"]), a_scale, inner=len(shape_of(a)) - 1)
    right = _widened(lowering, b, str(attributes["rhs"]), b_scale, inner=len(shape_of(b)) - 2)
    add_product(lowering, operation, left, right, c)


def _widened(
    lowering: FunctionLowering, value: Value, form: str, scale: Value | None, inner: int
) -> Buffer:
    """The scaled elements in float32. A scale's last dimension is groups of the inner one."""
    builder = lowering.builder
    shape = list(shape_of(value))
    if form == "e2m1":
        shape[inner] *= 2
        lowering.materialize(value)
    elif form not in _ELEMENTS:
        raise UnsupportedKernel(f"the format {form}")
    group = 0
    if scale is not None:
        lowering.materialize(scale)
        group = (shape[inner] // shape_of(scale)[-1]).bit_length() - 1
    buffer = lowering.buffers.take(TensorType(tuple(shape), F32))

    def body(position: Position) -> None:
        if form == "e2m1":
            lanes = _of_halves(lowering, value, position, inner)
        else:
            found = lowering.numbers(value, position)
            bits = Lanes.of(_ELEMENTS[form], position.lanes, found.vector(builder))
            lanes = converted_lanes(lowering, bits, F32)
        vector = lanes.vector(builder)
        if scale is not None:
            places = list(position.indices)
            groups = _shifted(builder, places.pop(inner), group)
            factors = lowering.numbers(scale, Position(position.lanes, (*places, groups)))
            vector = builder.fmul(vector, _power(builder, factors.vector(builder)))
        store_chunk(builder, buffer, position, Lanes.of(F32, position.lanes, vector))

    each_chunk(lowering, buffer.shape, body)
    return buffer


def _shifted(builder: ir.IRBuilder, index: Index, bits: int) -> Index:
    return index.field(builder, bits, 31 - bits, is_top=True) if bits else index


def _of_halves(lowering: FunctionLowering, value: Value, position: Position, inner: int) -> Lanes:
    """Four-bit floats, two to a byte, the first in its lower half."""
    builder, count = lowering.builder, position.lanes
    index = position.indices[inner]
    source = position.with_index(inner, _shifted(builder, index, 1))
    half = index.field(builder, 0, 1, is_top=False)
    which = Lanes.of_index(half).vector(builder)
    assert element_of(value.type) == ScalarType("i8")
    stored = lowering.numbers(value, source).vector(builder)
    wide = which.type
    code = builder.lshr(builder.zext(stored, wide), builder.mul(which, splat(wide, 4)))
    code = builder.and_(code, splat(wide, 15))
    numbers = [FLOAT(number) for number in (*_E2M1, *(-number for number in _E2M1))]
    initial = ir.Constant(ir.ArrayType(FLOAT, len(numbers)), numbers)
    table = global_constant(lowering.module, "e2m1", initial)
    pointers = builder.gep(table, [code], source_etype=FLOAT)
    if count == 1:
        return Lanes.of(F32, 1, builder.load(pointers, typ=FLOAT))
    pointers.type = ir.VectorType(ir.PointerType(), count)
    return Lanes.of(F32, count, gather(builder, FLOAT, pointers))


def _power(builder: ir.IRBuilder, exponent: ir.Value) -> ir.Value:
    """Two to the power of a byte less 127, as float32; 255 stands for NaN."""
    wide = with_scalar(exponent.type, I32)
    number = builder.zext(exponent, wide)
    bits = builder.shl(number, splat(wide, 23))
    smallest = builder.icmp_unsigned("==", number, splat(wide, 0))
    bits = builder.select(smallest, splat(wide, 1 << 22), bits)
    none = builder.icmp_unsigned("==", number, splat(wide, 255))
    bits = builder.select(none, splat(wide, 0x7FC00000), bits)
    return builder.bitcast(bits, with_scalar(wide, FLOAT))
