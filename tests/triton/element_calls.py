# SPDX-License-Identifier: Apache-2.0
"""Compiles one element-wise operation and runs it over arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from vllm_anvil.triton_backend.emit import HostCpu, host_cpu, object_code
from vllm_anvil.triton_backend.emit.target import target_machine
from vllm_anvil.triton_backend.emit.types import (
    llvm_type,
    memory_type,
    splat,
    to_memory,
    to_register,
)
from vllm_anvil.triton_backend.lower.elementwise import emit_all
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Operation,
    PointerType,
    ScalarType,
    TensorType,
    Value,
)

BASELINE = HostCpu("x86-64-v3", "")
# None is the processor that the tests run on.
CPUS = [pytest.param(None, id="host"), pytest.param(BASELINE, id="baseline")]
# How arrays hold the elements; formats that NumPy lacks as their bits.
STORAGE = {
    "i1": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}


def element(name: str) -> ElementType:
    return PointerType(ScalarType(name[1:])) if name.startswith("*") else ScalarType(name)


def storage(name: str) -> Any:
    return STORAGE.get(name, np.int64 if name.startswith("*") else np.uint8)


def operation(
    name: str,
    operands: Sequence[str],
    results: Sequence[str],
    lanes: int | None,
    **attributes: Any,
) -> Operation:
    """The operation as the parser would give it; element types by name, `*f32` being a pointer."""

    def value(index: int, type_name: str) -> Value:
        type_ = element(type_name)
        return Value(f"%{index}", type_ if lanes is None else TensorType((lanes,), type_))

    return Operation(
        name,
        [value(index, operand) for index, operand in enumerate(operands)],
        [value(index, result) for index, result in enumerate(results)],
        attributes,
    )


def _module(op: Operation, lanes: int | None) -> ir.Module:
    """`void run(ptr..., i64 count)`: the operands' and the results' arrays of `count` vectors."""
    types = [
        value.type.element if isinstance(value.type, TensorType) else value.type
        for value in (*op.operands, *op.results)
    ]
    module = ir.Module()
    i64, pointer = ir.IntType(64), ir.PointerType()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * len(types) + [i64])
    function = ir.Function(module, kind, "run")
    entry, loop, done = (function.append_basic_block(label) for label in ("entry", "loop", "done"))
    builder = ir.IRBuilder(entry)
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(i64)
    index.add_incoming(ir.Constant(i64, 0), entry)

    def place(position: int) -> ir.Value:
        stored = memory_type(types[position], lanes)
        return builder.gep(function.args[position], [index], source_etype=stored)

    operands = []
    for position in range(len(op.operands)):
        stored = memory_type(types[position], lanes)
        if op.operands[position].operation is not None:
            number = op.operands[position].operation.attributes["value"]
            operands.append(splat(llvm_type(types[position], lanes), number))
            continue
        loaded = builder.load(place(position), typ=stored, align=types[position].bytes)
        operands.append(to_register(builder, loaded, types[position]))
    for position, result in enumerate(emit_all(builder, op, operands), len(op.operands)):
        stored = to_memory(builder, result, types[position])
        builder.store(stored, place(position), align=types[position].bytes)
    following = builder.add(index, ir.Constant(i64, 1))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, function.args[-1]), loop, done)
    builder.position_at_end(done)
    builder.ret_void()
    return module


@functools.cache
def _linker() -> Any:
    # LLVM's older linker maps code and constants apart, and ends the process where the address
    # space has room for them only further apart than their references reach.
    return llvm.create_lljit_compiler(target_machine(host_cpu()), use_jit_link=True)


_serial = iter(range(1 << 30))


def compile_operation(
    name: str,
    operands: Sequence[str],
    results: Sequence[str],
    *,
    lanes: int | None = 16,
    cpu: HostCpu | None = None,
    constants: Mapping[int, int] | None = None,
    **attributes: Any,
) -> Callable[..., Any]:
    """The operation as a function of arrays of one length, whose multiple of `lanes` is computed.

    Operands named in `constants` are known to be that number in every lane; their arrays are not
    read. Linking fails where the code refers to a symbol but those that LLVM may always use.
    """
    op = operation(name, operands, results, lanes, **attributes)
    for index, number in (constants or {}).items():
        op.operands[index].operation = Operation("arith.constant", [], [], {"value": number})
    library = llvm.JITLibraryBuilder().add_object_img(object_code(str(_module(op, lanes)), cpu))
    library.export_symbol("run")
    for allowed in ("memcpy", "memset", "memmove"):
        address = ctypes.cast(getattr(ctypes.CDLL(None), allowed), ctypes.c_void_p).value
        library.import_symbol(allowed, address)
    tracker = library.link(_linker(), f"{name}.{next(_serial)}")
    count = len(operands) + len(results)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count, ctypes.c_int64)(tracker["run"])

    def call(*arrays: np.ndarray) -> Any:
        # `tracker` keeps the code.
        assert tracker
        step = lanes or 1
        length = len(arrays[0])
        padded_length = -(-length // step) * step
        inputs = []
        for array, type_name in zip(arrays, operands, strict=True):
            padded = np.zeros(padded_length, storage(type_name))
            padded[:length] = array
            inputs.append(padded)
        outputs = [np.zeros(padded_length, storage(type_name)) for type_name in results]
        run(*(array.ctypes.data for array in (*inputs, *outputs)), padded_length // step)
        cut = [output[:length] for output in outputs]
        return cut[0] if len(cut) == 1 else cut

    return call


# What the end of a comparison's predicate means.
PREDICATES = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
