# SPDX-License-Identifier: Apache-2.0
"""Where a program is in its grid."""

from __future__ import annotations

from llvmlite import ir

from vllm_anvil.triton_backend.lower.abi import launch_field
from vllm_anvil.triton_backend.lower.function import FunctionLowering
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.ttir.model import Operation

_AXES = "xyz"


@eager("tt.get_program_id")
def lower_program_id(lowering: FunctionLowering, operation: Operation) -> None:
    (axis,) = operation.attributes["words"]
    lowering.define(operation.result, lowering.program.identifiers[_AXES.index(axis)])


@eager("tt.get_num_programs")
def lower_num_programs(lowering: FunctionLowering, operation: Operation) -> None:
    (axis,) = operation.attributes["words"]
    builder = lowering.builder
    pointer = launch_field(builder, lowering.program.launch, _AXES.index(axis))
    lowering.define(operation.result, builder.load(pointer, typ=ir.IntType(32)))


@eager("gpu.barrier", "ttg.barrier", "tt.grid_dependency_wait")
def lower_barrier(lowering: FunctionLowering, operation: Operation) -> None:
    """A program is one thread here: what stands before has happened."""


@eager("tt.grid_dependency_launch_dependents")
def lower_launch_dependents(lowering: FunctionLowering, operation: Operation) -> None:
    """Permits the next kernel to start early; commands of a stream run one after the other."""


@eager("llvm.intr.assume")
def lower_assume(lowering: FunctionLowering, operation: Operation) -> None:
    """What a kernel promises is not relied on."""
