# SPDX-License-Identifier: Apache-2.0
"""Loops, conditions, branches.

What a loop carries: scalars as phis; tiles that only move by a scalar (a loop's pointers, mostly)
as their origin and a phi of the distance; other tiles in a buffer each, updated in place where the
new value of an element depends on no other element that is carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from vllm_anvil.triton_backend.emit.types import llvm_type
from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.lower.analysis import is_tile, terminator
from vllm_anvil.triton_backend.lower.buffers import Buffer
from vllm_anvil.triton_backend.lower.carried import carry_tiles
from vllm_anvil.triton_backend.lower.function import LOAD_COST, FunctionLowering, MovingTile
from vllm_anvil.triton_backend.lower.registry import eager
from vllm_anvil.triton_backend.ttir.model import (
    Block,
    Operation,
    PointerType,
    TensorType,
    Value,
    element_of,
)

I64 = ir.IntType(64)


@dataclass
class _Carried:
    """One value that a loop carries."""

    initial: Value
    argument: Value
    yielded: Value
    phi: ir.PhiInstr | None = None
    buffer: Buffer | None = None
    # By what the tile moves each time, where that is a scalar.
    step: Value | None = None

    def as_seen(self) -> ir.Value | Buffer | MovingTile:
        if self.buffer is not None:
            return self.buffer
        assert self.phi is not None
        return self.phi if self.step is None else MovingTile(self.initial, self.phi)


@eager("scf.for")
def lower_for(lowering: FunctionLowering, operation: Operation) -> None:
    lower, upper, step = (lowering.scalar(value) for value in operation.operands[:3])
    block = operation.regions[0].block
    index, *arguments = block.arguments
    carried = [
        _carried(lowering, initial, argument, yielded)
        for initial, argument, yielded in zip(
            operation.operands[3:], arguments, terminator(block).operands, strict=True
        )
    ]
    builder = lowering.builder
    before = builder.block
    header, body, after = (builder.append_basic_block(f"for_{part}") for part in _FOR_PARTS)
    builder.branch(header)
    builder.position_at_end(header)
    counter = builder.phi(lower.type)
    counter.add_incoming(lower, before)
    _add_phis(lowering, carried, before)
    compare = builder.icmp_unsigned if operation.attributes["unsigned"] else builder.icmp_signed
    builder.cbranch(compare("<", counter, upper), body, after)

    builder.position_at_end(body)
    with lowering.region():
        lowering.define(index, counter)
        for one in carried:
            lowering.define(one.argument, one.as_seen())
        lowering.lower_body(block)
        _yield(lowering, carried)
        counter.add_incoming(builder.add(counter, step), builder.block)
        builder.branch(header)

    builder.position_at_end(after)
    for one, result in zip(carried, operation.results, strict=True):
        lowering.define(result, one.as_seen())


_FOR_PARTS = ("header", "body", "end")


def _carried(
    lowering: FunctionLowering, initial: Value, argument: Value, yielded: Value
) -> _Carried:
    one = _Carried(initial, argument, yielded)
    if not is_tile(argument):
        return one
    one.step = _step(lowering, argument, yielded)
    if one.step is not None:
        if lowering.cost_of(initial) >= LOAD_COST:
            lowering.materialize(initial)
        return one
    assert isinstance(argument.type, TensorType)
    one.buffer = lowering.buffers.take(argument.type)
    lowering.store_tile(initial, one.buffer)
    return one


def _step(lowering: FunctionLowering, argument: Value, yielded: Value) -> Value | None:
    """What each element of a carried tile grows by, where it is the same for all.

    It is the tile that repeats the scalar: a splat, or a constant of one number.
    """
    operation = yielded.operation
    if operation is None or operation.name not in ("tt.addptr", "arith.addi"):
        return None
    first, second = operation.operands
    if first is not argument:
        if operation.name == "tt.addptr" or second is not argument:
            return None
        first, second = second, first
    made = second.operation
    if made is None:
        return None
    if made.name == "tt.splat":
        return second
    is_number = made.name == "arith.constant" and not isinstance(made.attributes["value"], list)
    return second if is_number else None


def _add_phis(lowering: FunctionLowering, carried: Sequence[_Carried], before: ir.Block) -> None:
    for one in carried:
        element = element_of(one.argument.type)
        if one.buffer is not None:
            continue
        if one.step is None:
            one.phi = lowering.builder.phi(llvm_type(element))
            one.phi.add_incoming(lowering.scalar(one.initial), before)
        else:
            type_ = I64 if isinstance(element, PointerType) else llvm_type(element)
            one.phi = lowering.builder.phi(type_)
            one.phi.add_incoming(ir.Constant(type_, 0), before)


def _yield(lowering: FunctionLowering, carried: Sequence[_Carried]) -> None:
    """Makes the values of the next iteration and ends this one, but for its branch."""
    builder = lowering.builder
    in_memory = [one for one in carried if one.buffer is not None]
    carry_tiles(
        lowering,
        [one.buffer for one in in_memory if one.buffer is not None],
        [one.yielded for one in in_memory],
    )
    for one in carried:
        if one.phi is None:
            continue
        if one.step is None:
            following = lowering.scalar(one.yielded)
        else:
            step = lowering.repeated_scalar(one.step)
            if step.type.width < one.phi.type.width:
                step = builder.sext(step, one.phi.type)
            following = builder.add(one.phi, step)
        one.phi.add_incoming(following, builder.block)


@eager("scf.if")
def lower_if(lowering: FunctionLowering, operation: Operation) -> None:
    builder = lowering.builder
    condition = lowering.scalar(operation.operands[0])
    buffers = {
        result: lowering.buffers.take(result.type)
        for result in operation.results
        if isinstance(result.type, TensorType)
    }
    branches = [builder.append_basic_block(f"if_{part}") for part in ("true", "false")]
    after = builder.append_basic_block("if_end")
    builder.cbranch(condition, *branches)
    incoming: list[tuple[dict[Value, ir.Value], ir.Block]] = []
    for number, branch in enumerate(branches):
        builder.position_at_end(branch)
        scalars: dict[Value, ir.Value] = {}
        if number < len(operation.regions):
            with lowering.region():
                end = lowering.lower_body(operation.regions[number].block)
                for value, result in zip(end.operands, operation.results, strict=True):
                    if result in buffers:
                        lowering.store_tile(value, buffers[result])
                    else:
                        scalars[result] = lowering.scalar(value)
        incoming.append((scalars, builder.block))
        builder.branch(after)
    builder.position_at_end(after)
    for result in operation.results:
        if result in buffers:
            lowering.define(result, buffers[result])
            continue
        phi = builder.phi(llvm_type(element_of(result.type)))
        for scalars, block in incoming:
            phi.add_incoming(scalars[result], block)
        lowering.define(result, phi)


@eager("scf.while")
def lower_while(lowering: FunctionLowering, operation: Operation) -> None:
    """`before` decides and passes values on, to `after` or out; `after` yields to `before`."""
    builder = lowering.builder
    first, second = (region.block for region in operation.regions)
    carried = [
        _Carried(initial, argument, yielded)
        for initial, argument, yielded in zip(
            operation.operands, first.arguments, terminator(second).operands, strict=True
        )
    ]
    for one in carried:
        if isinstance(one.argument.type, TensorType):
            one.buffer = lowering.buffers.take(one.argument.type)
            lowering.store_tile(one.initial, one.buffer)
    passed_buffers = {
        result: lowering.buffers.take(result.type)
        for result in operation.results
        if isinstance(result.type, TensorType)
    }
    before = builder.block
    header, body, after = (builder.append_basic_block(f"while_{part}") for part in _FOR_PARTS)
    builder.branch(header)
    builder.position_at_end(header)
    _add_phis(lowering, carried, before)
    with lowering.region():
        for one in carried:
            lowering.define(one.argument, one.as_seen())
        end = lowering.lower_body(first)
        if end.name != "scf.condition":
            raise UnsupportedKernel("a loop without a condition", end.name, end.location)
        condition, *passed = end.operands
        outcomes: list[ir.Value | Buffer] = []
        for value, result in zip(passed, operation.results, strict=True):
            if result in passed_buffers:
                lowering.store_tile(value, passed_buffers[result])
                outcomes.append(passed_buffers[result])
            else:
                outcomes.append(lowering.scalar(value))
        builder.cbranch(lowering.scalar(condition), body, after)
    builder.position_at_end(body)
    with lowering.region():
        for argument, outcome in zip(second.arguments, outcomes, strict=True):
            lowering.define(argument, outcome)
        lowering.lower_body(second)
        _yield(lowering, carried)
        builder.branch(header)
    builder.position_at_end(after)
    for result, outcome in zip(operation.results, outcomes, strict=True):
        lowering.define(result, outcome)


# Branches between a function's own blocks


@eager("cf.br", "cf.cond_br")
def lower_branch(lowering: FunctionLowering, operation: Operation) -> None:
    lowering.settle(operation)
    builder = lowering.builder
    targets = []
    for block, passed in operation.successors:
        if operation.operands and passed and any(is_tile(value) for value in passed):
            raise UnsupportedKernel("a conditional branch that passes tiles")
        _pass(lowering, block, passed)
        targets.append(lowering.blocks[block])
    if operation.operands:
        builder.cbranch(lowering.scalar(operation.operands[0]), *targets)
    else:
        builder.branch(targets[0])


def _pass(lowering: FunctionLowering, block: Block, passed: Sequence[Value]) -> None:
    arguments = lowering.block_arguments[block]
    tiles = [
        (what, value)
        for what, value in zip(arguments, passed, strict=True)
        if isinstance(what, Buffer)
    ]
    carry_tiles(lowering, [buffer for buffer, _ in tiles], [value for _, value in tiles])
    for what, value in zip(arguments, passed, strict=True):
        if isinstance(what, ir.PhiInstr):
            what.add_incoming(lowering.scalar(value), lowering.builder.block)
