# SPDX-License-Identifier: Apache-2.0
"""Counts of a tile's values."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.intrinsics import call_intrinsic
from vllm_anvil.triton_backend.lower.loops import counted
from vllm_anvil.triton_backend.lower.positions import Index, Position
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.lower.shape import shape_of
from vllm_anvil.triton_backend.ttir.model import Operation, TensorType


@eager("tt.histogram")
def lower_histogram(lowering: FunctionLowering, operation: Operation) -> None:
    """`result[i]` counts the elements that are `i`; others, and those masked off, count nowhere."""
    source, *mask = operation.operands
    result = operation.result
    assert isinstance(result.type, TensorType) and isinstance(source.type, TensorType)
    builder = lowering.builder
    buffer = lowering.buffers.take(result.type)
    bins, type_ = result.type.size, llvm_type(buffer.element)
    byte, size = ir.IntType(8)(0), ir.IntType(64)(bins * buffer.element.bytes)
    call_intrinsic(
        builder,
        "llvm.memset.p0.i64",
        ir.VoidType(),
        [buffer.pointer, byte, size, ir.IntType(1)(0)],
    )
    with counted(builder, source.type.size) as index, lowering.new_chunk():
        position = Position.of_flat(builder, Index(index, (0,)), shape_of(source))
        value = lowering.numbers(source, position).scalar
        counts = builder.icmp_unsigned("<", value, ir.Constant(value.type, bins))
        if mask:
            counts = builder.and_(counts, lowering.numbers(mask[0], position).scalar)
        with builder.if_then(counts):
            pointer = builder.gep(
                buffer.pointer, [builder.zext(value, ir.IntType(64))]
                if value.type.width < 64 else [value], source_etype=type_,
            )  # fmt: skip
            total = builder.add(builder.load(pointer, typ=type_), ir.Constant(type_, 1))
            builder.store(total, pointer)
    lowering.define(result, buffer)
