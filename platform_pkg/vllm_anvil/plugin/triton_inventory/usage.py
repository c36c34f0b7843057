# SPDX-License-Identifier: Apache-2.0
"""What the arguments of a Triton function are, by what it does with them."""

from __future__ import annotations

import ast
from typing import Any

from triton.runtime.jit import JITFunction

_ACCESSES = {"load", "store", "make_block_ptr", "make_tensor_descriptor"}
_MAX_DEPTH = 6


def pointer_arguments(function: JITFunction[Any], depth: int = 0) -> set[str]:
    """The names of the arguments through which `function`, or one that it calls, reaches memory."""
    definition = function.parse().body[0]
    assert isinstance(definition, ast.FunctionDef)
    found = {a.arg for a in definition.args.args if a.arg.lower().endswith(("_ptr", "_ptrs"))}
    assignments = [
        (target.id, node.value)
        for node in ast.walk(definition)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    arguments = set(function.arg_names)
    todo = [base for node in ast.walk(definition) for base in _bases(node, function, depth)]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        todo += [base for target, value in assignments if target == name for base in _base(value)]
    return (found | seen) & arguments


def switches(function: JITFunction[Any]) -> set[str]:
    """The names of the arguments that `function` only tests."""
    definition = function.parse().body[0]
    tested: set[str] = set()
    computed: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tested |= _names([node.test])
        elif isinstance(node, ast.BoolOp):
            tested |= _names(node.values)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tested |= _names([node.operand])
        elif isinstance(node, ast.BinOp):
            computed |= _names([node.left, node.right])
        elif isinstance(node, ast.Compare):
            computed |= _names([node.left, *node.comparators])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tl."):
            computed |= _names(node.args)
    return (tested - computed) & set(function.arg_names)


def _names(expressions: list[ast.expr]) -> set[str]:
    return {expression.id for expression in expressions if isinstance(expression, ast.Name)}


def _bases(node: ast.AST, function: JITFunction[Any], depth: int) -> list[str]:
    """Names that `node` uses as pointers."""
    if isinstance(node, ast.Attribute) and node.attr == "element_ty":
        owner = node.value.value if isinstance(node.value, ast.Attribute) else node.value
        return _base(owner)
    if not isinstance(node, ast.Call):
        return []
    called = node.func
    if (
        isinstance(called, ast.Attribute)
        and node.args
        and (called.attr in _ACCESSES or called.attr.startswith("atomic_"))
    ):
        return _base(node.args[0])
    target = _resolve(called, function)
    if isinstance(target, JITFunction) and depth < _MAX_DEPTH and target is not function:
        inner = pointer_arguments(target, depth + 1)
        given = dict(zip(target.arg_names, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg is not None}
        return [base for name, value in given.items() if name in inner for base in _base(value)]
    return []


def _resolve(called: ast.expr, function: JITFunction[Any]) -> Any:
    if isinstance(called, ast.Name):
        return function.__globals__.get(called.id)
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return getattr(function.__globals__.get(called.value.id), called.attr, None)
    return None


def _base(expression: ast.expr) -> list[str]:
    """The names that may be the pointer of a sum of one and offsets."""
    if isinstance(expression, ast.Name):
        return [expression.id]
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add | ast.Sub):
        return _base(expression.left)
    if isinstance(expression, ast.IfExp):
        return _base(expression.body) + _base(expression.orelse)
    if isinstance(expression, ast.Call):
        called = expression.func
        if isinstance(called, ast.Attribute) and called.attr in {"advance", "multiple_of"}:
            return _base(expression.args[0]) if expression.args else []
        if isinstance(called, ast.Attribute) and called.attr == "to" and expression.args:
            # An integer that becomes a pointer is no pointer itself.
            return [] if "pointer_type" in ast.unparse(expression.args[0]) else _base(called.value)
    return []
