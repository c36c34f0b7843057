# SPDX-License-Identifier: Apache-2.0
"""Parses the text of a TTIR module, as `str(module)` prints it, into the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.ttir.constants import constant_value
from vllm_anvil.triton_backend.ttir.model import (
    Block,
    Function,
    Module,
    Operation,
    PointerType,
    Region,
    ScalarType,
    TensorType,
    Type,
    Value,
    element_of,
)
from vllm_anvil.triton_backend.ttir.scanner import Scanner

_ATTRIBUTE_LINE = re.compile(r"#\w+ = [^\n]*")
_BLOCK_LABEL = re.compile(r"\^(\w+)")
_SYMBOL = re.compile(r"@([\w.$]+)")
_ITEM_END = (":", "loc(")
_BOOLEAN = ScalarType("i1")


@dataclass
class _Signature:
    """What the text of an operation says of types: before and after an arrow, if there is one."""

    inputs: list[Type] = field(default_factory=list)
    outputs: list[Type] | None = None


class Parser:
    """Parses one module. Values are found by name, which MLIR makes unique in a function."""

    def __init__(self, text: str):
        self._scanner = Scanner(text)
        self._values: dict[str, Value] = {}
        self._blocks: dict[str, Block] = {}

    def parse(self) -> Module:
        scanner = self._scanner
        functions: list[Function] = []
        self._skip_attribute_lines()
        scanner.take("module")
        if scanner.accept("attributes"):
            scanner.take_dictionary()
        scanner.take("{")
        while not scanner.accept("}"):
            functions.append(self._function())
        return Module(functions)

    def _skip_attribute_lines(self) -> None:
        while self._scanner.at("#"):
            if self._scanner.accept_pattern(_ATTRIBUTE_LINE) is None:
                raise self._scanner.error("an attribute's definition")

    # Functions, blocks

    def _function(self) -> Function:
        scanner = self._scanner
        scanner.take("tt.func")
        visibility = "public"
        if scanner.at_word():
            visibility = scanner.take_word()
        name = self._take_symbol()
        self._values, self._blocks = {}, {}
        scanner.take("(")
        arguments, argument_attributes = [], []
        while not scanner.accept(")"):
            arguments.append(self._declare_argument())
            argument_attributes.append(scanner.take_dictionary() if scanner.at("{") else {})
            scanner.accept_location()
            scanner.accept(",")
        results = scanner.take_types() if scanner.accept("->") else []
        if scanner.accept("attributes"):
            scanner.take_dictionary()
        body = self._region()
        body.blocks[0].arguments = arguments
        location = scanner.accept_location()
        public = visibility == "public"
        return Function(name, arguments, argument_attributes, results, body, public, location)

    def _take_symbol(self) -> str:
        match = self._scanner.accept_pattern(_SYMBOL)
        if match is None:
            raise self._scanner.error("a symbol")
        return match.group(1)

    def _declare_argument(self) -> Value:
        name = self._scanner.take_value_name()
        self._scanner.take(":")
        return self._declare(name, self._scanner.take_type())

    def _declare(self, name: str, type_: Type, operation: Operation | None = None) -> Value:
        value = Value(name, type_, operation)
        self._values[name] = value
        return value

    def _value(self) -> Value:
        name = self._scanner.take_value_name()
        if name not in self._values:
            raise self._scanner.error(f"a value defined before (`{name}` is not)")
        return self._values[name]

    def _block(self, label: str) -> Block:
        return self._blocks.setdefault(label, Block(label))

    def _region(self, arguments: list[Value] | None = None, end: str = "") -> Region:
        """A braced list of blocks; `arguments` are the first's where the operation names them.

        `end` names the terminator that is not printed where it has no operands.
        """
        scanner = self._scanner
        scanner.take("{")
        outer, self._blocks = self._blocks, {}
        region = Region()
        block = Block("", arguments or [])
        if not scanner.at("^"):
            region.blocks.append(block)
        while not scanner.accept("}"):
            if scanner.at("^"):
                block = self._block_header()
                region.blocks.append(block)
            else:
                block.operations.append(self._operation())
        self._blocks = outer
        if end and (not block.operations or block.operations[-1].name != end):
            block.operations.append(Operation(end, [], []))
        return region

    def _block_header(self) -> Block:
        scanner = self._scanner
        block = self._block(self._take_label())
        if scanner.accept("("):
            while not scanner.accept(")"):
                block.arguments.append(self._declare_argument())
                scanner.accept_location()
                scanner.accept(",")
        scanner.take(":")
        return block

    def _take_label(self) -> str:
        match = self._scanner.accept_pattern(_BLOCK_LABEL)
        if match is None:
            raise self._scanner.error("a block's label")
        return match.group(1)

    # Operations

    def _operation(self) -> Operation:
        scanner = self._scanner
        names = self._result_names()
        quoted = scanner.accept_string()
        name = quoted if quoted is not None else scanner.take_word()
        operation = Operation(name, [], [])
        if quoted is not None:
            signature = self._generic(operation)
        else:
            signature = _CUSTOM.get(name, Parser._usual)(self, operation)
        operation.location = scanner.accept_location()
        types = self._result_types(operation, signature, len(names))
        for result, type_ in zip(names, types, strict=True):
            operation.results.append(self._declare(result, type_, operation))
        return operation

    def _result_names(self) -> list[str]:
        """Names before `=`; `%a:2` stands for `%a#0` and `%a#1`."""
        scanner = self._scanner
        names: list[str] = []
        while scanner.at("%"):
            name = scanner.take_value_name()
            if scanner.accept(":"):
                count = int(scanner.accept_number() or 1)
                names += [f"{name}#{index}" for index in range(count)]
            else:
                names.append(name)
            scanner.accept(",")
        if names:
            scanner.take("=")
        return names

    def _result_types(self, operation: Operation, signature: _Signature, count: int) -> list[Type]:
        if count == 0:
            return []
        if signature.outputs is not None:
            outputs = signature.outputs
            return outputs * count if len(outputs) == 1 else outputs
        if not signature.inputs:
            raise self._unsupported(operation, "its text gives no type")
        rule = _RESULT_TYPE.get(operation.name)
        last = signature.inputs[-1]
        return [rule(signature.inputs) if rule else last] * count

    def _unsupported(self, operation: Operation, reason: str) -> UnsupportedKernel:
        self._scanner.accept_location()
        return UnsupportedKernel(reason, operation.name, operation.location)

    def _signature(self) -> _Signature:
        """`: types`, `: types -> types`, `: type to type`, `: type * type -> type`."""
        scanner = self._scanner
        signature = _Signature()
        if not scanner.accept(":"):
            return signature
        signature.inputs = self._type_list()
        if scanner.accept("->") or scanner.accept("to"):
            signature.outputs = self._type_list()
        return signature

    def _type_list(self) -> list[Type]:
        scanner = self._scanner
        types = scanner.take_types()
        while scanner.accept(",") or scanner.accept("*"):
            scanner.accept("scale")  # tt.dot_scaled names its scales' types
            types += scanner.take_types()
        return types

    def _generic(self, operation: Operation) -> _Signature:
        """`"name"(operands) <{attributes}> ({regions}) {attributes} : (types) -> types`."""
        scanner = self._scanner
        scanner.take("(")
        while not scanner.accept(")"):
            operation.operands.append(self._value())
            scanner.accept(",")
        if scanner.accept("<"):
            operation.attributes.update(scanner.take_dictionary())
            scanner.take(">")
        if scanner.accept("("):
            while not scanner.accept(")"):
                operation.regions.append(self._region())
                scanner.accept(",")
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        return self._signature()

    def _usual(self, operation: Operation) -> _Signature:
        """Operands, bare words, named and braced attributes in any order, then the types.

        Bare words (such as a predicate or the axis of a program id) are collected in `words`,
        strings in `strings`.
        """
        scanner = self._scanner
        attributes = operation.attributes
        while not any(scanner.at(end) for end in _ITEM_END):
            if scanner.at("%"):
                operation.operands.append(self._value())
            elif scanner.at("{"):
                attributes.update(scanner.take_dictionary())
            elif (text := scanner.accept_string()) is not None:
                attributes.setdefault("strings", []).append(text)
            elif scanner.at_word():
                self._word_or_attribute(operation)
            elif not any(scanner.accept(mark) for mark in (",", "[", "]", "(", ")")):
                raise scanner.error(f"what belongs to `{operation.name}`")
        return self._signature()

    def _word_or_attribute(self, operation: Operation) -> None:
        scanner = self._scanner
        start = scanner.position
        word = scanner.take_word()
        if scanner.accept("="):
            operation.attributes[word] = scanner.take_attribute()
        elif scanner.text[start + len(word) : start + len(word) + 1] == "<":
            # Flags such as overflow<nsw> and fastmath<contract>, which only permit.
            while not scanner.accept(">"):
                scanner.position += 1
        else:
            operation.attributes.setdefault("words", []).append(word)

    def _comparison(self, operation: Operation) -> _Signature:
        operation.attributes["predicate"] = self._scanner.take_word()
        return self._usual(operation)

    def _constant(self, operation: Operation) -> _Signature:
        scanner = self._scanner
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        value: Any
        if scanner.accept("dense<"):
            value = scanner.take_dense()
        elif scanner.at_word():
            word = scanner.take_word()
            operation.attributes["value"] = int(word == "true")
            return _Signature([_BOOLEAN])
        else:
            value = scanner.accept_number()
        signature = self._signature()
        operation.attributes["value"] = constant_value(value, signature.inputs[0])
        return signature

    def _call(self, operation: Operation) -> _Signature:
        operation.attributes["callee"] = self._take_symbol()
        return self._usual(operation)

    def _dot_scaled(self, operation: Operation) -> _Signature:
        """`%a scale %sa, %b scale %sb, %c lhs = e4m3 ...`; either scale may be absent.

        The scales follow the three operands; `scaled` says which of `%a` and `%b` have one.
        """
        scanner = self._scanner
        scales: list[Value] = []
        scaled = []
        for _ in range(2):
            operation.operands.append(self._value())
            scaled.append(scanner.accept("scale"))
            if scaled[-1]:
                scales.append(self._value())
            scanner.take(",")
        operation.operands.append(self._value())
        operation.operands += scales
        operation.attributes["scaled"] = scaled
        return self._usual(operation)

    def _print(self, operation: Operation) -> _Signature:
        """`tt.print "prefix" {attributes} : %a, %b : types`."""
        scanner = self._scanner
        operation.attributes["prefix"] = scanner.accept_string()
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        if scanner.accept(":"):
            while scanner.at("%"):
                operation.operands.append(self._value())
                scanner.accept(",")
            self._signature()
        return _Signature()

    # Control flow

    def _for(self, operation: Operation) -> _Signature:
        """`scf.for %i = %a to %b step %c iter_args(%x = %y) -> (types) : type {...}`."""
        scanner = self._scanner
        operation.attributes["unsigned"] = scanner.accept("unsigned")
        index = scanner.take_value_name()
        scanner.take("=")
        for separator in ("to", "step", ""):
            operation.operands.append(self._value())
            if separator:
                scanner.take(separator)
        names, outputs = [], []
        if scanner.accept("iter_args("):
            while not scanner.accept(")"):
                names.append(scanner.take_value_name())
                scanner.take("=")
                operation.operands.append(self._value())
                scanner.accept(",")
            scanner.take("->")
            outputs = scanner.take_types()
        type_ = scanner.take_type() if scanner.accept(":") else operation.operands[0].type
        arguments = [self._declare(index, type_)]
        arguments += [
            self._declare(name, type_) for name, type_ in zip(names, outputs, strict=True)
        ]
        operation.regions.append(self._region(arguments, "scf.yield"))
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        return _Signature([], outputs)

    def _if(self, operation: Operation) -> _Signature:
        scanner = self._scanner
        operation.operands.append(self._value())
        outputs = scanner.take_types() if scanner.accept("->") else []
        operation.regions.append(self._region(end="scf.yield"))
        if scanner.accept("else"):
            operation.regions.append(self._region(end="scf.yield"))
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        return _Signature([], outputs)

    def _while(self, operation: Operation) -> _Signature:
        """`scf.while (%x = %y) : (types) -> types { before } do { after }`."""
        scanner = self._scanner
        names = []
        if scanner.accept("("):
            while not scanner.accept(")"):
                names.append(scanner.take_value_name())
                scanner.take("=")
                operation.operands.append(self._value())
                scanner.accept(",")
        signature = self._signature()
        arguments = [
            self._declare(name, type_) for name, type_ in zip(names, signature.inputs, strict=True)
        ]
        operation.regions.append(self._region(arguments))
        scanner.take("do")
        operation.regions.append(self._region(end="scf.yield"))
        if scanner.accept("attributes"):
            operation.attributes.update(scanner.take_dictionary())
        return signature

    def _branch(self, operation: Operation) -> _Signature:
        """`cf.br ^a(%x : type)` and `cf.cond_br %c, ^a(...), ^b(...)`."""
        scanner = self._scanner
        if scanner.at("%"):
            operation.operands.append(self._value())
            scanner.take(",")
        while scanner.at("^"):
            block = self._block(self._take_label())
            passed = []
            if scanner.accept("("):
                while scanner.at("%"):
                    passed.append(self._value())
                    scanner.accept(",")
                self._signature()
                scanner.take(")")
            operation.successors.append((block, passed))
            scanner.accept(",")
        if scanner.at("{"):
            operation.attributes.update(scanner.take_dictionary())
        return _Signature()


def _with_element(type_: Type, element: Any) -> Type:
    return TensorType(type_.shape, element) if isinstance(type_, TensorType) else element


def _pointee(inputs: list[Type]) -> Type:
    pointer = element_of(inputs[0])
    assert isinstance(pointer, PointerType)
    return _with_element(inputs[0], pointer.pointee)


# How the type of a result follows where an operation's text names its operands' types only.
_RESULT_TYPE: dict[str, Callable[[list[Type]], Type]] = {
    "arith.cmpi": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "arith.cmpf": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "math.isnan": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "math.isinf": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "math.isfinite": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "math.isnormal": lambda inputs: _with_element(inputs[0], _BOOLEAN),
    "tt.addptr": lambda inputs: inputs[0],
    "tt.load": _pointee,
    "tt.unsplat": lambda inputs: element_of(inputs[0]),
}

_CUSTOM: dict[str, Callable[[Parser, Operation], _Signature]] = {
    "arith.constant": Parser._constant,
    "arith.cmpi": Parser._comparison,
    "arith.cmpf": Parser._comparison,
    "cf.br": Parser._branch,
    "cf.cond_br": Parser._branch,
    "scf.for": Parser._for,
    "scf.if": Parser._if,
    "scf.while": Parser._while,
    "tt.call": Parser._call,
    "tt.dot_scaled": Parser._dot_scaled,
    "tt.print": Parser._print,
}


def parse(text: str) -> Module:
    """The module of the text that `str(module)` gives, with locations.

    Raises UnsupportedKernel, with the line of the text, for what isn't understood.
    """
    return Parser(text).parse()
