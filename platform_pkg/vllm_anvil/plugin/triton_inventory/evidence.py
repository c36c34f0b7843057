# SPDX-License-Identifier: Apache-2.0
"""Reads off the engine's source with which values and types it launches a kernel.

What a launch passes is computed as far as the source tells: constants, module constants, local
names, sizes from sizes; where an expression comes to something unknown, its name decides
(`names`), so that sizes which belong together stay together.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from vllm_anvil.plugin.triton_inventory import names
from vllm_anvil.plugin.triton_inventory.discovery import Launch

DTYPES = {
    "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16", "int64": "i64", "long": "i64", "int32": "i32",
    "int": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "bool": "i1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
# Calls that give a tensor of the dtype that they are told, or else of their argument's.
_LIKE = {"empty_like", "zeros_like", "ones_like", "full_like", "clone", "contiguous", "reshape"}
_LIKE |= {"flatten", "unsqueeze", "squeeze", "transpose", "permute", "expand", "t", "detach"}
_SAME_DTYPE = _LIKE | {"view", "to", "new_empty", "new_zeros", "new_ones", "new_full"}
_MAKERS = {
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "tensor",
    "empty_strided",
    "TritonWarmupTensor",
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
_MAX_DEPTH = 12


class Unknown(Exception):
    """The source does not tell."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, of the element type with Triton's name `element` where that is known."""

    element: str | None = None


@dataclass(frozen=True)
class Size:
    """A number that is known only when the launch is made: an extent, a stride, a count."""


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(int(number) - 1, 0).bit_length()


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "next_power_of_2": power_of_two,
    "cdiv": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
    "min": min,
    "max": max,
    "int": int,
    "float": float,
    "bool": bool,
    "abs": abs,
}


def passed(launch: Launch, arguments: tuple[str, ...]) -> dict[str, ast.expr]:
    """The expressions that a launch passes, by the kernel's argument."""
    by_name = dict(zip(arguments, launch.positional, strict=False)) | launch.named
    # What prepares a launch ahead of time names tensors without `_ptr`, and sizes in lower case.
    loose = {name.lower(): value for name, value in by_name.items()}
    found = {}
    for name in arguments:
        for key in (name, name.lower(), name.lower().removesuffix("_ptr")):
            if key in by_name or key in loose:
                found[name] = by_name.get(key, loose.get(key))
                break
    return {name: value for name, value in found.items() if value is not None}


def evaluate(expression: ast.expr, scopes: tuple[ast.AST, ...], depth: int = 0) -> Any:
    """A number, string, boolean or None, a `Tensor`, or a `Size`; raises `Unknown`."""
    if depth > _MAX_DEPTH:
        raise Unknown
    reader = _READERS.get(type(expression))
    if reader is None:
        raise Unknown
    return reader(expression, scopes, depth + 1)


def number(expression: ast.expr, scopes: tuple[ast.AST, ...], depth: int = 0) -> Any:
    """Like `evaluate`, but what is unknown gets the number that its name suggests."""
    try:
        value = evaluate(expression, scopes, depth)
    except Unknown:
        value = Size()
    if isinstance(value, Size | Tensor):
        name = _last_name(expression)
        if not name:
            raise Unknown
        return names.constant(name)
    return value


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Name):
        return expression.id
    return expression.attr if isinstance(expression, ast.Attribute) else ""


def _constant(node: ast.Constant, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    return node.value


def _name(node: ast.Name, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    for index, scope in enumerate(scopes):
        outer = scopes[index:]
        for statement in _own_statements(scope):
            value = _assigned(statement, node.id)
            if value is not None and not _mentions(value, node.id):
                return evaluate(value, outer, depth)
        if isinstance(scope, ast.FunctionDef):
            argument = next(
                (a for a in ast.walk(scope.args) if getattr(a, "arg", 0) == node.id), None
            )
            if isinstance(argument, ast.arg):
                return _parameter(argument)
    raise Unknown


def _parameter(argument: ast.arg) -> Any:
    annotation = ast.unparse(argument.annotation) if argument.annotation is not None else ""
    if "Tensor" in annotation:
        return Tensor()
    if annotation.startswith("int"):
        return Size()
    raise Unknown


def _own_statements(scope: ast.AST) -> list[ast.AST]:
    """The statements of a scope, those of functions in it left out."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            todo[:0] = ast.iter_child_nodes(node)
    return found


def _assigned(statement: ast.AST, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name) and target.id == name:
                return statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.value if statement.target.id == name else None
    return None


def _mentions(expression: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(expression))


def _attribute(node: ast.Attribute, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    if isinstance(node.value, ast.Name) and node.value.id == "tl" and node.attr in DTYPES:
        return getattr(tl, node.attr)
    if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
        for index, scope in enumerate(scopes):
            for statement in _own_statements(scope) if isinstance(scope, ast.ClassDef) else ():
                if (value := _assigned(statement, node.attr)) is not None:
                    return evaluate(value, scopes[index:], depth)
    raise Unknown


def _subscript(node: ast.Subscript, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return Size()
    value = evaluate(node.value, scopes, depth)
    if isinstance(value, Tensor):
        return value
    raise Unknown


def _dtype(node: ast.expr) -> str | None:
    return DTYPES.get(node.attr) if isinstance(node, ast.Attribute) else None


def _call(node: ast.Call, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    function = node.func
    name = _last_name(function)
    owner = function.value if isinstance(function, ast.Attribute) else None
    told = [word.value for word in node.keywords if word.arg == "dtype"] + node.args
    elements = [element for element in map(_dtype, told) if element is not None]
    if name in _MAKERS:
        return Tensor(elements[0] if elements else None)
    if name in _SAME_DTYPE:
        if elements:
            return Tensor(elements[0])
        source = node.args[0] if name.endswith("_like") and node.args else owner
        value = evaluate(source, scopes, depth) if source is not None else None
        return value if isinstance(value, Tensor) else Tensor()
    if name == "stride" and node.args and ast.unparse(node.args[0]) == "-1":
        return 1
    if name in {"stride", "size", "numel", "item", "len", "dim"}:
        return Size()
    if name in _FUNCTIONS and not node.keywords:
        values = [number(argument, scopes, depth) for argument in node.args]
        return _compute(_FUNCTIONS[name], *values)
    raise Unknown


def _compute(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise Unknown from None


def _binary(node: ast.BinOp, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    values = (number(node.left, scopes, depth), number(node.right, scopes, depth))
    return _compute(_OPERATORS.get(type(node.op), _no_operator), *values)


def _no_operator(*values: Any) -> Any:
    raise TypeError


def _unary(node: ast.UnaryOp, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    return _compute(
        _OPERATORS.get(type(node.op), _no_operator), number(node.operand, scopes, depth)
    )


def _compare(node: ast.Compare, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    test, right = node.ops[0], node.comparators[0]
    if isinstance(test, ast.Is | ast.IsNot) and isinstance(right, ast.Constant):
        try:
            value = evaluate(node.left, scopes, depth)
        except Unknown:
            value = Tensor()
        return (value is right.value) == isinstance(test, ast.Is)
    values = (number(node.left, scopes, depth), number(right, scopes, depth))
    return _compute(_OPERATORS.get(type(test), _no_operator), *values)


def _boolean(node: ast.BoolOp, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    *others, last = node.values
    for other in others:
        value = number(other, scopes, depth)
        if bool(value) == isinstance(node.op, ast.Or):
            return value
    return number(last, scopes, depth)


def _choice(node: ast.IfExp, scopes: tuple[ast.AST, ...], depth: int) -> Any:
    try:
        taken = bool(number(node.test, scopes, depth))
    except Unknown:
        taken = True
    return evaluate(node.body if taken else node.orelse, scopes, depth)


_READERS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _choice,
}
