# SPDX-License-Identifier: Apache-2.0
"""Runs a program with NumPy: whole tiles, one statement after the other, program by program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz import tiles
from fuzz.arithmetic import elementwise, is_elementwise, is_transcendental, literal, transcendental
from fuzz.formats import NUMPY, cast
from fuzz.programs import (
    Assign,
    For,
    If,
    Literal,
    Operand,
    PointerArgument,
    Program,
    Rebind,
    Return,
    ScalarArgument,
    Statement,
    Store,
    Var,
    While,
)


class BadProgram(AssertionError):
    """The program does what no program may: the generator is wrong."""


class _Ended(Exception):
    """This program of the grid returned."""


@dataclass(frozen=True)
class Value:
    """What a variable holds; where the error is given, each element is only known to within it."""

    array: np.ndarray
    error: np.ndarray | None = None


# Addresses are a storage's number in the upper bits and, above this, an element's index.
_ORIGIN = 1 << 30
_STORAGE_BITS = 40


class Memory:
    """The storages, by number."""

    def __init__(self, arrays: list[np.ndarray]):
        self.arrays = [array.copy() for array in arrays]
        self.errors = [np.zeros(array.shape) for array in arrays]

    def _parts(self, addresses: np.ndarray, mask: np.ndarray) -> list[tuple[int, Any, np.ndarray]]:
        """Per storage: its number, which lanes address it, and the indices of all lanes."""
        storage = addresses >> _STORAGE_BITS
        index = (addresses & ((1 << _STORAGE_BITS) - 1)) - _ORIGIN
        parts = []
        for number in np.unique(storage[mask]).tolist():
            lanes = mask & (storage == number)
            used = index[lanes]
            if used.min() < 0 or used.max() >= len(self.arrays[number]):
                raise BadProgram(f"storage {number} has no element {used.min()} to {used.max()}")
            parts.append((number, lanes, index))
        return parts

    def load(self, addresses: np.ndarray, mask: np.ndarray, other: np.ndarray) -> Value:
        result, error = other.copy(), np.zeros(addresses.shape)
        for number, lanes, index in self._parts(addresses, mask):
            result[lanes] = self.arrays[number][index[lanes]]
            error[lanes] = self.errors[number][index[lanes]]
        return Value(result, error if error.any() else None)

    def store(self, addresses: np.ndarray, value: Value, mask: np.ndarray) -> None:
        for number, lanes, index in self._parts(addresses, mask):
            used = index[lanes]
            if len(np.unique(used)) != len(used):
                raise BadProgram("an element is stored twice by one store")
            self.arrays[number][used] = value.array[lanes]
            self.errors[number][used] = 0 if value.error is None else value.error[lanes]

    def atomic(self, op: str, addresses: np.ndarray, values: list[np.ndarray], mask: Any) -> Any:
        """One element after the other; what was there before, zero where the mask is false."""
        first = values[0]
        old = np.zeros(first.shape, first.dtype)
        for lane in np.ndindex(first.shape):
            if not mask[lane]:
                continue
            ((number, _, index),) = self._parts(addresses[lane][None], np.array([True]))
            place = self.arrays[number]
            before = place[index[0]]
            old[lane] = before
            place[index[0]] = _ATOMICS[op](before, *(value[lane] for value in values))
        return old


_ATOMICS = {
    "add": lambda old, new: old + new,
    "max": lambda old, new: max(old, new),
    "min": lambda old, new: min(old, new),
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "xchg": lambda old, new: new,
    "cas": lambda old, expected, new: new if old == expected else old,
}


def run(program: Program, inputs: list[np.ndarray]) -> Memory:
    """The storages after the program, whose contents before are `inputs`.

    Raises BadProgram where an access is out of bounds, or a store has one element twice.
    """
    memory = Memory(inputs)
    width, height, depth = (*program.grid, 1, 1)[:3]
    with np.errstate(all="ignore"):
        for z in range(depth):
            for y in range(height):
                for x in range(width):
                    one = _OneProgram(program, memory, (x, y, z))
                    try:
                        one.block(program.body, one.variables)
                    except _Ended:
                        continue
    return memory


Variables = dict[str, Value]


class _OneProgram:
    def __init__(self, program: Program, memory: Memory, place: tuple[int, int, int]):
        self.program = program
        self.memory = memory
        self.place = place
        self.variables: Variables = {}
        self.scalars: dict[str, ScalarArgument] = {}
        for argument in program.arguments:
            if isinstance(argument, PointerArgument):
                number = program.storages.index(argument.storage)
                address = (number << _STORAGE_BITS) + _ORIGIN + argument.offset
                self.variables[argument.name] = Value(np.array(address, np.int64))
            else:
                self.scalars[argument.name] = argument

    def block(self, block: list[Statement], variables: Variables) -> None:
        for statement in block:
            self.statement(statement, variables)

    def statement(self, statement: Statement, variables: Variables) -> None:
        match statement:
            case Assign():
                self.assign(statement, variables)
            case Rebind():
                values = [self.value(one, "", variables) for one in statement.sources]
                for target, value in zip(statement.targets, values, strict=True):
                    variables[target.name] = value
            case Store():
                pointer = variables[statement.pointer.name].array
                value = self.value(statement.value, statement.pointer.dtype[1:], variables)
                mask = np.ones(pointer.shape, bool)
                if statement.mask is not None:
                    mask = np.broadcast_to(variables[statement.mask.name].array, pointer.shape)
                whole = _broadcast(value, pointer.shape)
                self.memory.store(pointer, whole, mask)
            case For():
                low, high, step = (
                    int(self.value(bound, statement.index.dtype, variables).array)
                    for bound in statement.bounds
                )
                for number in range(low, high, step):
                    index = np.array(number, NUMPY[statement.index.dtype])
                    variables[statement.index.name] = Value(index)
                    self.block(statement.body, variables)
            case While():
                for _ in range(1000):
                    for step_ in statement.test:
                        self.assign(step_, variables)
                    if not variables[statement.test[-1].targets[0].name].array:
                        return
                    self.block(statement.body, variables)
                raise BadProgram("a loop does not end")
            case If():
                taken = variables[statement.condition.name].array
                self.block(statement.then if taken else statement.otherwise, variables)
            case Return():
                raise _Ended

    def value(self, operand: Operand, dtype: str, variables: Variables) -> Value:
        if isinstance(operand, Literal):
            return Value(literal(operand.value, dtype))
        return variables[operand.name]

    def assign(self, assign: Assign, variables: Variables) -> None:
        dtypes = [operand.dtype for operand in assign.operands if isinstance(operand, Var)]
        dtype = dtypes[-1] if dtypes and assign.op == "where" else (dtypes or [""])[0]
        number = dtype
        if dtype.startswith("*"):
            number = "i64" if assign.op in ("add", "sub") else dtype[1:]
        values = [self.value(operand, number, variables) for operand in assign.operands]
        if assign.op == "call":
            results = self.call(assign, values)
        else:
            results = self.results(assign, values, dtype)
        for target, value in zip(assign.targets, results, strict=True):
            whole = _broadcast(value, target.shape)
            if value.error is None:
                held = whole.array.astype(tiles.numpy_dtype(target.dtype), copy=False)
                whole = Value(held)
            variables[target.name] = whole

    def call(self, assign: Assign, values: list[Value]) -> list[Value]:
        function = assign.attributes["function"]
        names = [parameter.name for parameter in function.parameters]
        variables = dict(zip(names, values, strict=True))
        self.block(function.body, variables)
        return [variables[result.name] for result in function.results]

    def results(self, assign: Assign, values: list[Value], dtype: str) -> list[Value]:
        op, a = assign.op, assign.attributes
        arrays = [value.array for value in values]
        types = [target.type for target in assign.targets]
        target = types[0].dtype if types else ""
        if op in tiles.MOVES:
            return self.moved(assign, values)
        if op == "where":
            return [_where(*values)]
        if op == "gather":
            return [_gathered(values[0], arrays[1], a["axis"])]
        if any(value.error is not None for value in values):
            raise BadProgram(f"`{op}` of what is not known exactly")
        if op.startswith("load"):
            return [self.load(arrays, target)]
        if op.startswith("descriptor"):
            return self.descriptor(arrays, a, target)
        if op == "through_integer":
            return [Value(arrays[0] + a["elements"])]
        if op.startswith("atomic"):
            return self.atomic(op, arrays, dtype, target)
        if target.startswith("*"):
            if op == "copy":
                return [values[0]]
            offset = arrays[1].astype(np.int64)
            return [Value(arrays[0] + offset if op == "add" else arrays[0] - offset)]
        if op in ("program_id", "num_programs"):
            whole = self.place if op == "program_id" else (*self.program.grid, 1, 1)
            return [Value(np.array(whole[a["axis"]], np.int32))]
        if op == "argument":
            argument = self.scalars[a["name"]]
            return [Value(literal(argument.value, argument.dtype))]
        if op == "arange":
            return [Value(np.arange(a["start"], a["end"], dtype=np.int32))]
        if op == "full":
            return [Value(literal(a["value"], target))]
        if is_elementwise(op):
            return [Value(elementwise(op, arrays, dtype, target))]
        if is_transcendental(op):
            return [Value(*transcendental(op, arrays[0], dtype))]
        if op in ("reduce", "scan"):
            return [Value(one) for one in tiles.combined(op, arrays, a)]
        if op.startswith("histogram"):
            mask = arrays[1] if len(arrays) > 1 else None
            return [Value(tiles.histogram(arrays[0], a["bins"], mask))]
        if op.startswith("dot"):
            return [Value(*tiles.dot(arrays[:2], target, arrays[2] if arrays[2:] else None))]
        if op == "softmax":
            return [Value(*tiles.softmax(arrays[0], dtype, a["axis"]))]
        exact = tiles.reduction(op, arrays[0], dtype, types, a)
        if exact is None:
            return [Value(*tiles.float_sum(op, arrays[0], dtype, a))]
        return [Value(one) for one in exact]

    def moved(self, assign: Assign, values: list[Value]) -> list[Value]:
        move = tiles.MOVES[assign.op]
        type_, a = assign.targets[0].type, assign.attributes
        arrays = move(type_, a, *(value.array for value in values))
        parts = arrays if isinstance(arrays, tuple) else (arrays,)
        if all(value.error is None for value in values):
            return [Value(part) for part in parts]
        errors = move(type_, a, *(_error(value) for value in values))
        errors = errors if isinstance(errors, tuple) else (errors,)
        return [Value(part, error) for part, error in zip(parts, errors, strict=True)]

    def load(self, arrays: list[np.ndarray], target: str) -> Value:
        pointer, *rest = arrays
        mask = np.broadcast_to(rest[0] if rest else np.array(True), pointer.shape)
        other = rest[1] if len(rest) > 1 else np.array(0)
        whole = np.broadcast_to(other.astype(NUMPY[target]), pointer.shape)
        return self.memory.load(pointer, mask, whole)

    def descriptor(self, arrays: list[np.ndarray], a: dict[str, Any], target: str) -> list[Value]:
        rows, columns = np.ogrid[: a["block"][0], : a["block"][1]]
        rows, columns = rows + a["offsets"][0], columns + a["offsets"][1]
        inside = (rows >= 0) & (rows < a["shape_"][0]) & (columns >= 0) & (columns < a["shape_"][1])
        pointers = arrays[0] + rows * a["strides"][0] + columns * a["strides"][1]
        if target:
            zeros = np.zeros(pointers.shape, NUMPY[target])
            return [self.memory.load(pointers, inside, zeros)]
        self.memory.store(pointers, Value(np.broadcast_to(arrays[1], pointers.shape)), inside)
        return []

    def atomic(self, op: str, arrays: list[np.ndarray], dtype: str, target: str) -> list[Value]:
        _, kind, *masked = op.split("_")
        pointer, *values = arrays
        mask = np.broadcast_to(values.pop() if masked else np.array(True), pointer.shape)
        shape = pointer.shape
        element = dtype[1:]
        whole = [np.broadcast_to(one.astype(NUMPY[element]), shape) for one in values]
        old = self.memory.atomic(kind, pointer, whole, mask)
        if element == "bf16":
            self._round_bf16(pointer, mask)
        return [Value(old)] if target else []

    def _round_bf16(self, pointer: np.ndarray, mask: np.ndarray) -> None:
        """After atomic additions, of which each element here has had one."""
        now = self.memory.load(pointer, mask, np.zeros(pointer.shape, np.float32))
        self.memory.store(pointer, Value(cast(now.array, "f32", "bf16")), mask)


def _error(value: Value) -> np.ndarray:
    return np.zeros(value.array.shape) if value.error is None else value.error


def _broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    array = np.broadcast_to(value.array, shape)
    error = None if value.error is None else np.broadcast_to(value.error, shape)
    return Value(array, error)


def _where(condition: Value, then: Value, otherwise: Value) -> Value:
    array = np.where(condition.array, then.array, otherwise.array)
    if then.error is None and otherwise.error is None:
        return Value(array)
    return Value(array, np.where(condition.array, _error(then), _error(otherwise)))


def _gathered(source: Value, index: np.ndarray, axis: int) -> Value:
    wide = index.astype(np.int64)
    array = np.take_along_axis(source.array, wide, axis)
    if source.error is None:
        return Value(array)
    return Value(array, np.take_along_axis(source.error, wide, axis))
