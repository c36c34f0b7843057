# SPDX-License-Identifier: Apache-2.0
"""Writes a program as Triton."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuzz.combines import COMBINES
from fuzz.programs import (
    Assign,
    For,
    Function,
    If,
    Literal,
    Operand,
    PointerArgument,
    Program,
    Rebind,
    Return,
    Statement,
    Store,
    While,
    walk,
)

TRITON = {
    "i1": "tl.int1",
    **{f"i{bits}": f"tl.int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"tl.uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "f8e4m3": "tl.float8e4nv",
    "f8e5m2": "tl.float8e5",
}
ANNOTATIONS = {"i1": "u1", "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64"}

_PROPAGATE = "propagate_nan=tl.PropagateNan.ALL"
_UNARY = ("abs", "floor", "ceil", "sqrt", "sqrt_rn", "exp", "exp2", "log", "log2", "sin", "cos")
_UNARY += ("rsqrt", "erf", "sigmoid", "ravel", "trans")
_REDUCTIONS = ("sum", "max", "min", "xor_sum", "reduce_or", "argmax", "argmin")
_ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg")

_DESCRIPTOR = "tl.make_tensor_descriptor({0}, {shape_}, {strides}, {block})"

# {0}, {1}, ... are the operands, {dtype} and {shape} the result's, other names attributes.
TEMPLATES = {
    "copy": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "div": "{0} / {1}",
    "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "neg": "-{0}",
    "not": "~{0}",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum_nan": f"tl.minimum({{0}}, {{1}}, {_PROPAGATE})",
    "maximum_nan": f"tl.maximum({{0}}, {{1}}, {_PROPAGATE})",
    "clamp": "tl.clamp({0}, {1}, {2})",
    "clamp_nan": f"tl.clamp({{0}}, {{1}}, {{2}}, {_PROPAGATE})",
    "fma": "tl.fma({0}, {1}, {2})",
    "umulhi": "tl.umulhi({0}, {1})",
    "where": "tl.where({0}, {1}, {2})",
    "cast": "{0}.to({dtype})",
    "bitcast": "{0}.to({dtype}, bitcast=True)",
    "argument": "tl.full((), {name}, {dtype})",
    **{name: f"tl.{name}({{0}})" for name in _UNARY},
    "softmax": "tl.softmax({0}, {axis})",
    "arange": "tl.arange({start}, {end})",
    "full": "tl.full({shape}, {value}, {dtype})",
    "splat": "tl.full({shape}, {0}, {dtype})",
    "broadcast": "tl.broadcast_to({0}, {shape})",
    "expand": "tl.expand_dims({0}, {axis})",
    "reshape": "tl.reshape({0}, {shape})",
    "permute": "tl.permute({0}, {order})",
    "join": "tl.join({0}, {1})",
    "split": "tl.split({0})",
    "cat": "tl.cat({0}, {1}, dim={axis})",
    "interleave": "tl.interleave({0}, {1})",
    "flip": "tl.flip({0}, {axis})",
    "gather": "tl.gather({0}, {1}, {axis})",
    **{name: f"tl.{name}({{0}}, {{axis}}, keep_dims={{keep}})" for name in _REDUCTIONS},
    "max_and_place": "tl.max({0}, {axis}, return_indices=True, keep_dims={keep})",
    "min_and_place": "tl.min({0}, {axis}, return_indices=True, keep_dims={keep})",
    "cumsum": "tl.cumsum({0}, {axis}, reverse={reverse})",
    "cumprod": "tl.cumprod({0}, {axis}, reverse={reverse})",
    "sort": "tl.sort({0}, descending={descending})",
    "topk": "tl.topk({0}, {k})",
    "histogram": "tl.histogram({0}, {bins})",
    "histogram_masked": "tl.histogram({0}, {bins}, {1})",
    "dot": "tl.dot({0}, {1})",
    "dot_add": "tl.dot({0}, {1}, acc={2})",
    "load": "tl.load({0})",
    "load_masked": "tl.load({0}, mask={1})",
    "load_other": "tl.load({0}, mask={1}, other={2})",
    "load_volatile": "tl.load({0}, volatile=True)",
    "through_integer": "({0}.to(tl.int64) + {bytes}).to(tl.pointer_type({element}))",
    "descriptor_load": f"{_DESCRIPTOR}.load({{offsets}})",
    "descriptor_store": f"{_DESCRIPTOR}.store({{offsets}}, {{1}})",
    "program_id": "tl.program_id({axis})",
    "num_programs": "tl.num_programs({axis})",
    **{f"atomic_{name}": f"tl.atomic_{name}({{0}}, {{1}})" for name in _ATOMICS},
    **{f"atomic_{name}_masked": f"tl.atomic_{name}({{0}}, {{1}}, mask={{2}})" for name in _ATOMICS},
    "atomic_cas": "tl.atomic_cas({0}, {1}, {2})",
}


def kernel_source(program: Program) -> str:
    """A module with the kernel, `kernel`, and what it calls."""
    combines = _combines_used(program)
    parts = ["import triton\nimport triton.language as tl\n"]
    parts += [COMBINES[name].source() for name in combines]
    parts += [_function(function) for function in program.functions]
    parameters = [
        argument.name
        if isinstance(argument, PointerArgument)
        else f'{argument.name}: "{ANNOTATIONS.get(argument.dtype, argument.dtype)}"'
        for argument in program.arguments
    ]
    lines = "\n".join(_block(program.body, 1))
    parts.append(f"@triton.jit\ndef kernel({', '.join(parameters)}):\n{lines}\n")
    return "\n\n".join(parts)


def _combines_used(program: Program) -> list[str]:
    blocks = [program.body, *(function.body for function in program.functions)]
    names = {
        statement.attributes["combine"]: None
        for block in blocks
        for statement in walk(block)
        if isinstance(statement, Assign) and "combine" in statement.attributes
    }
    return list(names)


def _function(function: Function) -> str:
    decorator = "@triton.jit(noinline=True)" if function.noinline else "@triton.jit"
    parameters = ", ".join(parameter.name for parameter in function.parameters)
    results = ", ".join(result.name for result in function.results)
    lines = "\n".join([*_block(function.body, 1), f"    return {results}"])
    return f"{decorator}\ndef {function.name}({parameters}):\n{lines}\n"


def _block(block: list[Statement], depth: int) -> list[str]:
    margin = "    " * depth
    lines = [line for statement in block for line in _statement(statement, depth)]
    return lines or [f"{margin}pass"]


def _statement(statement: Statement, depth: int) -> Iterator[str]:
    margin = "    " * depth
    match statement:
        case Assign():
            targets = ", ".join(target.name for target in statement.targets)
            text = expression(statement, {})
            yield f"{margin}{targets} = {text}" if targets else f"{margin}{text}"
        case Rebind():
            targets = ", ".join(target.name for target in statement.targets)
            sources = ", ".join(_operand(source, {}) for source in statement.sources)
            yield f"{margin}{targets} = {sources}"
        case Store():
            parts = [statement.pointer.name, _operand(statement.value, {})]
            if statement.mask is not None:
                parts.append(f"mask={statement.mask.name}")
            yield f"{margin}tl.store({', '.join(parts)})"
        case For():
            function = "tl.static_range" if statement.unrolled else "range"
            bounds = ", ".join(_operand(bound, {}) for bound in statement.bounds)
            name = statement.index.name
            yield f"{margin}for {name}_ in {function}({bounds}):"
            yield f"{margin}    {name} = tl.full((), {name}_, {TRITON[statement.index.dtype]})"
            yield from _block(statement.body, depth + 1)
        case While():
            known: dict[str, str] = {}
            for step in statement.test:
                known[step.targets[0].name] = f"({expression(step, known)})"
            yield f"{margin}while {known[statement.test[-1].targets[0].name][1:-1]}:"
            yield from _block(statement.body, depth + 1)
        case If():
            yield f"{margin}if {statement.condition.name}:"
            yield from _block(statement.then, depth + 1)
            if statement.otherwise:
                yield f"{margin}else:"
                yield from _block(statement.otherwise, depth + 1)
        case Return():
            yield f"{margin}return"


def expression(assign: Assign, known: dict[str, str]) -> str:
    """The right side of an assignment; `known` names what is written out instead of its name."""
    operands = [_operand(operand, known) for operand in assign.operands]
    attributes = assign.attributes
    if assign.op == "call":
        return f"{attributes['function'].name}({', '.join(operands)})"
    if assign.op in ("reduce", "scan"):
        whole = operands[0] if len(operands) == 1 else f"({', '.join(operands)})"
        if assign.op == "scan":
            function, last = "associative_scan", f"reverse={attributes['reverse']}"
        else:
            function, last = "reduce", f"keep_dims={attributes['keep']}"
        return f"tl.{function}({whole}, {attributes['axis']}, {attributes['combine']}, {last})"
    result = assign.targets[0] if assign.targets else None
    shown = {name: _number(value) for name, value in attributes.items()}
    if "element" in shown:
        shown["element"] = TRITON[shown["element"]]
    if result is not None:
        shape = ", ".join(map(str, result.shape))
        shown["shape"] = f"({shape},)" if len(result.shape) == 1 else f"({shape})"
        shown["dtype"] = TRITON.get(result.dtype, result.dtype)
    return TEMPLATES[assign.op].format(*operands, **shown)


def _operand(operand: Operand, known: dict[str, str]) -> str:
    if isinstance(operand, Literal):
        text = _number(operand.value)
        return f"({text})" if text.startswith("-") else text
    return known.get(operand.name, operand.name)


def _number(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return str(value)
