# SPDX-License-Identifier: Apache-2.0
"""What a compiled kernel is given: csrc/triton_rt has the other side (TritonLaunch)."""

from __future__ import annotations

from llvmlite import ir

I32 = ir.IntType(32)
POINTER = ir.PointerType()

# struct TritonLaunch: the grid's three extents and a reserved word, then pointers.
LAUNCH = ir.LiteralStructType([I32, I32, I32, I32, POINTER, POINTER, POINTER, POINTER, POINTER])
SCRATCH, CONTEXT, PRINT, FAIL, SNPRINTF = range(4, 9)

# int32_t kernel(const void* arguments, const TritonLaunch* launch, int32_t x, int32_t y, int32_t z)
KERNEL = ir.FunctionType(I32, [POINTER, POINTER, I32, I32, I32])
SLOT_BYTES = 8


def launch_field(builder: ir.IRBuilder, launch: ir.Value, member: int) -> ir.Value:
    """A pointer to a member of the launch."""
    return builder.gep(launch, [I32(0), I32(member)], inbounds=True, source_etype=LAUNCH)


def load_launch_pointer(builder: ir.IRBuilder, launch: ir.Value, member: int) -> ir.Value:
    return builder.load(launch_field(builder, launch, member), typ=POINTER)
