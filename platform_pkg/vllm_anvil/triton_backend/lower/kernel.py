# SPDX-License-Identifier: Apache-2.0
"""From the text of a TTIR module to LLVM IR that follows the kernels' calling convention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llvmlite import ir

from vllm_anvil.triton_backend.emit.target import HostCpu, host_cpu
from vllm_anvil.triton_backend.emit.types import llvm_type, memory_type, to_register
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.abi import KERNEL, SCRATCH, SLOT_BYTES, load_launch_pointer
from vllm_anvil.triton_backend.lower.analysis import argument_accesses, walk
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.calls import Callee, callee_type
from vllm_anvil.triton_backend.lower.function import FunctionLowering, Program
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Function,
    Module,
    PointerType,
    TensorType,
    Value,
)
from vllm_anvil.triton_backend.ttir.parser import parse

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)


@dataclass(frozen=True)
class KernelArgument:
    """One argument: `ptr`, an integer or a float type; for a pointer, how its memory is used."""

    type: str
    reads: bool
    writes: bool


@dataclass(frozen=True)
class LoweredKernel:
    """LLVM IR of a kernel, the symbol's name in it, and what a launch has to provide.

    `scratch_bytes` is what each program needs, in memory that no other uses at the same time,
    aligned to 64 bytes.
    """

    name: str
    llvm_ir: str
    scratch_bytes: int
    arguments: list[KernelArgument]


def lower_kernel(ttir_text: str, *, cpu: HostCpu | None = None) -> LoweredKernel:
    """Lowers the one public function of a module, and those that it calls.

    Raises UnsupportedKernel, which names the operation, the kernel and the source line.
    """
    module = parse(ttir_text)
    kernel = module.kernel
    try:
        return _ModuleLowering(module, cpu or host_cpu()).lower(kernel)
    except UnsupportedKernel as error:
        raise error.in_kernel(kernel.name) from None


class _ModuleLowering:
    def __init__(self, module: Module, cpu: HostCpu):
        self._functions = {function.name: function for function in module.functions}
        self._cpu = cpu
        self._llvm = ir.Module("triton")
        self._callees: dict[str, Callee] = {}
        # Each function has a part of the scratch to itself: none is entered twice at a time.
        self._scratch_bytes = 0

    def lower(self, kernel: Function) -> LoweredKernel:
        self._lower_callees(kernel, (kernel.name,))
        function = ir.Function(self._llvm, KERNEL, kernel.name)
        arguments, launch, *identifiers = function.args
        entry = ir.IRBuilder(function.append_basic_block("entry"))
        values = [
            _argument(entry, arguments, number, argument)
            for number, argument in enumerate(kernel.arguments)
        ]
        lowering = self._function(kernel, function, entry, launch, identifiers, values)
        accesses = argument_accesses(lowering.analysis)
        described = [
            KernelArgument(_type_name(argument.type), reads, writes)
            for argument, (reads, writes) in zip(kernel.arguments, accesses, strict=True)
        ]
        return LoweredKernel(kernel.name, str(self._llvm), self._scratch_bytes, described)

    def _function(
        self,
        function: Function,
        llvm_function: ir.Function,
        entry: ir.IRBuilder,
        launch: ir.Value,
        identifiers: list[ir.Value],
        arguments: Iterable[ir.Value | Buffer],
        places: list[ir.Value] | None = None,
    ) -> FunctionLowering:
        llvm_function.attributes.add("nounwind")
        start = I64(self._scratch_bytes)
        whole = load_launch_pointer(entry, launch, SCRATCH)
        scratch = entry.gep(whole, [start], source_etype=I8)
        x, y, z = identifiers
        program = Program(launch, (x, y, z), scratch)
        lowering = FunctionLowering(
            function, llvm_function, program, entry, self._cpu, self._callees, places or []
        )
        for argument, value in zip(function.arguments, arguments, strict=True):
            lowering.define(argument, value)
        lowering.lower_function()
        self._scratch_bytes += lowering.buffers.scratch_bytes
        return lowering

    def _lower_callees(self, function: Function, callers: tuple[str, ...]) -> None:
        for operation in walk(function.body):
            if operation.name != "tt.call":
                continue
            name = operation.attributes["callee"]
            if name in callers:
                raise UnsupportedKernel("recursion", operation.name, operation.location)
            if name not in self._callees:
                callee = self._functions[name]
                self._lower_callees(callee, (*callers, name))
                self._callees[name] = self._lower_callee(callee)

    def _lower_callee(self, function: Function) -> Callee:
        llvm_function = ir.Function(self._llvm, callee_type(function), function.name)
        llvm_function.linkage = "internal"
        launch, x, y, z, *passed = llvm_function.args
        entry = ir.IRBuilder(llvm_function.append_basic_block("entry"))
        values: list[ir.Value | Buffer] = []
        for argument, value in zip(function.arguments, passed, strict=False):
            if isinstance(argument.type, TensorType):
                values.append(Buffer(value, argument.type.shape, argument.type.element))
            else:
                values.append(value)
        places = passed[len(function.arguments) :]
        self._function(function, llvm_function, entry, launch, [x, y, z], values, places)
        return Callee(function, llvm_function)


def _argument(builder: ir.IRBuilder, arguments: ir.Value, number: int, argument: Value) -> ir.Value:
    if isinstance(argument.type, TensorType):
        raise UnsupportedKernel("a tile as the argument of a kernel")
    slot = builder.gep(arguments, [I64(number * SLOT_BYTES)], source_etype=I8)
    if isinstance(argument.type, PointerType):
        return builder.load(slot, typ=llvm_type(argument.type))
    loaded = builder.load(slot, typ=memory_type(argument.type))
    return to_register(builder, loaded, argument.type)


def _type_name(type_: ElementType | TensorType) -> str:
    return "ptr" if isinstance(type_, PointerType) else str(type_)
