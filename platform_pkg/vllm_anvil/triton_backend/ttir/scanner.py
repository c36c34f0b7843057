# SPDX-License-Identifier: Apache-2.0
"""Reads pieces of MLIR text: words, types, attribute values, locations."""

from __future__ import annotations

import re
import struct
from typing import Any

from vllm_anvil.triton_backend.errors import UnsupportedKernel
from vllm_anvil.triton_backend.ttir.model import (
    ElementType,
    Location,
    PointerType,
    ScalarType,
    TensorType,
    Type,
)

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][\w.$]*")
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_NUMBER = re.compile(r"-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d+(?:[eE][+-]?\d+)?)?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_EXTENT = re.compile(r"(\d+)x")
_SCALAR = re.compile(r"(?:i\d+|index|bf16|f\d+[A-Z0-9]*)\b")
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_ESCAPED = {"n": "\n", "t": "\t"}
_LOCATION_ALIAS = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)

# How the bits of a float are printed where it has no decimal form.
_FLOAT_BITS = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}


def float_from_bits(bits: int, type_: ScalarType) -> float:
    """The value of a float's bit pattern; `bf16` and wider only, and `f16`."""
    if type_.name == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    as_integer, as_float = _FLOAT_BITS[type_.bits]
    return float(struct.unpack(as_float, struct.pack(as_integer, bits))[0])


def unescape(text: str) -> str:
    """MLIR writes special characters as two hexadecimal digits, some as in C."""

    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 2:
            return chr(int(code, 16))
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, text)


class Scanner:
    """A position in MLIR text. Methods named `take` expect something, `accept` may find nothing."""

    def __init__(self, text: str):
        self.text = text
        self.position = 0
        self._aliases = dict(_LOCATION_ALIAS.findall(text))
        self._locations: dict[str, Location | None] = {}
        self.skip_space()

    def error(self, wanted: str) -> UnsupportedKernel:
        line = self.text.count("\n", 0, self.position) + 1
        rest = self.text[self.position : self.position + 60].split("\n")[0]
        return UnsupportedKernel(f"line {line} of its TTIR: expected {wanted}, found `{rest}`")

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def at(self, literal: str) -> bool:
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        self.skip_space()
        return True

    def take(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.error(f"`{literal}`")

    def accept_pattern(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            self.skip_space()
        return match

    def accept_word(self) -> str | None:
        match = self.accept_pattern(_WORD)
        return match.group() if match else None

    def take_word(self) -> str:
        word = self.accept_word()
        if word is None:
            raise self.error("a word")
        return word

    def at_word(self) -> bool:
        return _WORD.match(self.text, self.position) is not None

    def accept_value_name(self) -> str | None:
        match = self.accept_pattern(_VALUE)
        return match.group() if match else None

    def take_value_name(self) -> str:
        name = self.accept_value_name()
        if name is None:
            raise self.error("a value")
        return name

    def accept_string(self) -> str | None:
        match = self.accept_pattern(_STRING)
        return unescape(match.group(1)) if match else None

    def accept_number(self) -> str | None:
        match = self.accept_pattern(_NUMBER)
        return match.group() if match else None

    # Types

    def accept_type(self) -> Type | None:
        if self.accept("tensor<"):
            shape = []
            while match := self.accept_pattern(_EXTENT):
                shape.append(int(match.group(1)))
            element = self.take_element_type()
            if self.accept(","):
                raise self.error("a tensor without an encoding")
            self.take(">")
            return TensorType(tuple(shape), element)
        return self._accept_element_type()

    def take_type(self) -> Type:
        type_ = self.accept_type()
        if type_ is None:
            raise self.error("a type")
        return type_

    def _accept_element_type(self) -> ElementType | None:
        if self.accept("!tt.ptr<"):
            pointee = self.take_type()
            if isinstance(pointee, TensorType):
                raise self.error("a pointer to an element, not to a tensor")
            if self.accept(","):
                self.accept_number()
            self.take(">")
            return PointerType(pointee)
        match = self.accept_pattern(_SCALAR)
        return ScalarType(match.group()) if match else None

    def take_element_type(self) -> ElementType:
        type_ = self._accept_element_type()
        if type_ is None:
            raise self.error("an element's type")
        return type_

    def take_types(self) -> list[Type]:
        """One type, or several in parentheses."""
        if not self.accept("("):
            return [self.take_type()]
        types: list[Type] = []
        while not self.accept(")"):
            types.append(self.take_type())
            self.accept(",")
        return types

    # Attributes

    def take_dictionary(self) -> dict[str, Any]:
        """`{name = value, flag}`; the opening brace is next."""
        self.take("{")
        attributes: dict[str, Any] = {}
        while not self.accept("}"):
            quoted = self.accept_string()
            name = quoted if quoted is not None else self.take_word()
            attributes[name] = self.take_attribute() if self.accept("=") else True
            self.accept(",")
        return attributes

    def take_attribute(self) -> Any:
        """A number (its type dropped), boolean, string, list, type or symbol."""
        text = self.accept_string()
        if text is not None:
            return text
        if self.accept("["):
            return self._take_list("]")
        if self.accept("array<"):
            self.take_word()
            self.accept(":")
            return self._take_list(">")
        if self.accept("dense<"):
            value = self.take_dense()
            self.take(":")
            self.take_type()
            return value
        if self.at("{"):
            return self.take_dictionary()
        if self.accept("#"):
            return self._take_dialect_attribute()
        number = self.accept_number()
        if number is not None:
            type_ = self.take_type() if self.accept(":") else None
            return self.number(number, type_)
        type_ = self.accept_type()
        if type_ is not None:
            return type_
        word = self.take_word()
        return {"true": True, "false": False}.get(word, word)

    def _take_list(self, end: str) -> list[Any]:
        items: list[Any] = []
        while not self.accept(end):
            items.append(self.take_attribute())
            self.accept(",")
        return items

    def _take_dialect_attribute(self) -> str:
        """Such as `#tt.divisibility<16>`; kept as text."""
        start = self.position
        self.take_word()
        if self.accept("<"):
            depth = 1
            while depth:
                if self.position >= len(self.text):
                    raise self.error("the end of an attribute")
                depth += {"<": 1, ">": -1}.get(self.text[self.position], 0)
                self.position += 1
            self.skip_space()
        return self.text[start : self.position].strip()

    def take_dense(self) -> Any:
        """What is between `dense<` and `>`: one item, or nested lists; numbers stay text."""
        value = self._take_dense_item()
        self.take(">")
        return value

    def _take_dense_item(self) -> Any:
        if self.accept("["):
            items = []
            while not self.accept("]"):
                items.append(self._take_dense_item())
                self.accept(",")
            return items
        text = self.accept_string()
        if text is not None:
            return ("bytes", text)
        number = self.accept_number()
        return number if number is not None else self.take_word()

    @staticmethod
    def number(text: str, type_: Type | None) -> int | float:
        """A printed number as its type wants it; floats may be printed as bit patterns."""
        element = type_.element if isinstance(type_, TensorType) else type_
        if isinstance(element, ScalarType) and element.is_float:
            if "0x" in text:
                return float_from_bits(int(text, 16), element)
            return float(text)
        if "0x" in text:
            return int(text, 16)
        return float(text) if "." in text else int(text)

    # Locations

    def accept_location(self) -> Location | None:
        """A trailing `loc(...)`."""
        if not self.accept("loc("):
            return None
        location = self._take_location()
        self.take(")")
        return location

    def _alias(self, name: str) -> Location | None:
        if name not in self._locations:
            self._locations[name] = None
            text = self._aliases.get(name)
            if text is not None:
                inner = Scanner.__new__(Scanner)
                inner.text, inner.position = text, 0
                inner._aliases, inner._locations = self._aliases, self._locations
                self._locations[name] = inner._take_location()
        return self._locations[name]

    def _take_location(self) -> Location | None:
        if self.accept("#"):
            return self._alias(self.take_word())
        if self.accept("callsite("):
            inner = self._take_location()
            self.take("at")
            outer = self._take_location()
            self.take(")")
            if inner is None:
                return outer
            return Location(inner.file, inner.line, outer)
        if self.accept("fused"):
            if self.accept("<"):
                self.take_attribute()
                self.take(">")
            self.take("[")
            parts = []
            while not self.accept("]"):
                parts.append(self._take_location())
                self.accept(",")
            return next((part for part in parts if part is not None), None)
        name = self.accept_string()
        if name is not None:
            if self.accept(":"):
                line = int(self.accept_number() or 0)
                self.take(":")
                self.accept_number()
                if self.accept("to"):  # a range of places: its beginning is enough
                    while self.accept(":") or self.accept_number() is not None:
                        pass
                return Location(name, line)
            if self.accept("("):
                location = self._take_location()
                self.take(")")
                return location
            return None
        self.take("unknown")
        return None
