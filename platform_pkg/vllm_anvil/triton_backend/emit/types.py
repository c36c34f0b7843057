# SPDX-License-Identifier: Apache-2.0
"""How the elements of TTIR stand in LLVM IR, in registers and in memory.

| TTIR | in a register | in memory |
|---|---|---|
| `i1` | `i1` | `i8`, 0 or 1 |
| `i8` to `i64` | the same | the same |
| `index` | `i64` | `i64` |
| `f16`, `f32`, `f64` | `half`, `float`, `double` | the same |
| `bf16` | `i16`, its bits | `i16` |
| 8-bit floats | `i8`, its bits | `i8` |
| pointers | `ptr`; in vectors `i64`, the address | `i64` |

bf16 stays bits because LLVM's own conversion flushes denormals where the processor has one, and
because vectors of `bfloat` are not legal on the baseline. Vectors of addresses are integers because
addresses are computed with, and nothing loads through a vector of `ptr`.
"""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.ttir.model import ElementType, PointerType

_FLOATS: dict[str, type[ir.Type]] = {
    "f16": ir.HalfType,
    "f32": ir.FloatType,
    "f64": ir.DoubleType,
}


def vector_of(scalar: ir.Type, lanes: int | None) -> ir.Type:
    """`<lanes x scalar>`, or `scalar` itself for None."""
    return scalar if lanes is None else ir.VectorType(scalar, lanes)


def llvm_type(element: ElementType, lanes: int | None = None) -> ir.Type:
    """The type that holds `lanes` elements in a register; None stands for one scalar."""
    if isinstance(element, PointerType):
        return ir.PointerType() if lanes is None else ir.VectorType(ir.IntType(64), lanes)
    if element.name in _FLOATS:
        return vector_of(_FLOATS[element.name](), lanes)
    return vector_of(ir.IntType(element.bits), lanes)


def memory_type(element: ElementType, lanes: int | None = None) -> ir.Type:
    """The type that holds `lanes` elements in memory, without padding between them."""
    if isinstance(element, PointerType):
        return vector_of(ir.IntType(64), lanes)
    if element.name == "i1":
        return vector_of(ir.IntType(8), lanes)
    return llvm_type(element, lanes)


def to_register(builder: ir.IRBuilder, stored: ir.Value, element: ElementType) -> ir.Value:
    """What was loaded as `memory_type`, as `llvm_type`; a boolean is true unless its byte is 0."""
    lanes = lanes_of(stored.type)
    if isinstance(element, PointerType):
        return builder.inttoptr(stored, ir.PointerType()) if lanes is None else stored
    if element.name == "i1":
        return builder.icmp_unsigned("!=", stored, splat(stored.type, 0))
    return stored


def to_memory(builder: ir.IRBuilder, value: ir.Value, element: ElementType) -> ir.Value:
    """A value of `llvm_type` as `memory_type`, ready to be stored."""
    lanes = lanes_of(value.type)
    if isinstance(element, PointerType):
        return builder.ptrtoint(value, ir.IntType(64)) if lanes is None else value
    if element.name == "i1":
        return builder.zext(value, vector_of(ir.IntType(8), lanes))
    return value


def lanes_of(type_: ir.Type) -> int | None:
    """How many lanes a vector type has; None for a scalar."""
    return type_.count if isinstance(type_, ir.VectorType) else None


def scalar_of(type_: ir.Type) -> ir.Type:
    """The type of one lane."""
    return type_.element if isinstance(type_, ir.VectorType) else type_


def with_scalar(type_: ir.Type, scalar: ir.Type) -> ir.Type:
    """`type_` with lanes of the type `scalar`."""
    return vector_of(scalar, lanes_of(type_))


def splat(type_: ir.Type, number: float) -> ir.Constant:
    """`number` in every lane of `type_`; an integer is taken modulo the type's width."""
    scalar = scalar_of(type_)
    if isinstance(scalar, ir.IntType):
        number = int(number) & ((1 << scalar.width) - 1)
        if number >> (scalar.width - 1) and scalar.width > 1:
            number -= 1 << scalar.width
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [number] * type_.count)
    return ir.Constant(type_, number)
